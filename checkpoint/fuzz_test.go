package checkpoint

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/vfs"
)

// bodyOf is the body of a manifest that is accepted.
func bodyOf(t testing.TB) []byte {
	m := vfs.NewMem()
	start(t, m, root, 3)
	doc, err := vfs.ReadFile(m, filepath.Join(root, "step-000003", manifestName), 1<<20)
	must(t, err)
	body, err := unseal(doc)
	must(t, err)
	return body
}

// FuzzManifest: no input, also one under the right checksum, which who forges one can make, makes the parser panic;
// what it accepts is the encoding of what it returned, and can be read, with all pieces inside of files with plain
// names.
func FuzzManifest(f *testing.F) {
	body := bodyOf(f)
	f.Add(body)
	for _, change := range forgeries {
		f.Add(bytes.ReplaceAll(body, []byte(change[0]), []byte(change[1])))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, doc := range [][]byte{body, seal(body)} {
			m, err := decode(doc)
			if err != nil {
				if len(err.Error()) > 1000 || strings.Contains(err.Error(), "\n") {
					t.Fatalf("error %q", err)
				}
				continue
			}
			again, err := m.encode()
			if err != nil || !bytes.Equal(again, doc) {
				t.Fatalf("%v: %s became %s", err, doc, again)
			}
			length := map[string]int64{}
			for _, file := range m.Files {
				if filepath.Base(file.Name) != file.Name || strings.HasPrefix(file.Name, ".") || file.Name == manifestName {
					t.Fatalf("file %q", file.Name)
				}
				length[file.Name] = file.Bytes
			}
			for _, e := range m.Extents {
				var sum int64
				for _, p := range e.Pieces {
					if p.Bytes <= 0 || p.Offset < 0 || p.Offset+p.Bytes > length[p.File] {
						t.Fatalf("piece %+v", p)
					}
					sum += p.Bytes
				}
				if sum != e.Bytes {
					t.Fatalf("extent %+v", e)
				}
			}
		}
	})
}

// forgeries are changes that make a manifest of none.
var forgeries = [][2]string{
	{`"name":"norm.weights"`, `"name":"../../etc/passwd"`},
	{`norm.weights`, `../norm.weights`},
	{`norm.weights`, `norm/weights`},
	{`norm.weights`, `manifest.json`},
	{`"name":"norm.weights","bytes":16`, `"name":"norm.weights","bytes":15`},
	{`"name":"norm.weights","bytes":16`, `"name":"norm.weights","bytes":-1`},
	{`"name":"norm.weights","bytes":16`, `"name":"norm.weights","bytes":9223372036854775807`},
	{`"name":"norm.weights"`, `"name":"block.0.weights"`},
	{`"file":"norm.weights","offset":0`, `"file":"norm.weights","offset":1`},
	{`"file":"norm.weights","offset":0`, `"file":"norm.weights","offset":-1`},
	{`"file":"norm.weights","offset":0`, `"file":"norm.weights","offset":9223372036854775807`},
	{`"file":"norm.weights"`, `"file":"block.0.weights"`}, // overlaps
	{`"file":"norm.weights"`, `"file":"nowhere"`},
	{`"part":"norm"`, `"part":"block.0"`}, // twice
	{`"part":"norm"`, `"part":".."`},
	{`"kind":"weights"`, `"kind":"biases"`},
	{`"dtype":"bf16"`, `"dtype":"bf17"`},
	{`"bytes":100,"piece_bytes":40`, `"bytes":1000000000000,"piece_bytes":1`},
	{`"bytes":100,"piece_bytes":40`, `"bytes":100,"piece_bytes":0`},
	{`"bytes":100,"piece_bytes":40`, `"bytes":121,"piece_bytes":40`},
	{`"bytes":100,"piece_bytes":40`, `"bytes":-100,"piece_bytes":40`},
	{`"bytes":100,"piece_bytes":40`, `"bytes":1e2,"piece_bytes":40`},
	{`"computed_on":"CPU, AVX2"`, `"computed_on":"CPU,\nAVX2"`},
	{`"computed_on":"CPU, AVX2"`, `"computed_on":"` + strings.Repeat("CPU, AVX2 ", 51) + `"`},
	{`"computed_on":"CPU, AVX2"`, `"computed_on":""`}, // absent then
	{`"moment_codes":"at random"`, `"moment_codes":"at\trandom"`},
	{`"moment_codes":"at random"`, `"moment_codes":"` + strings.Repeat("at random ", 51) + `"`},
	{`"moment_codes":"at random"`, `"moment_codes":""`}, // absent then
	{`"algorithms":["4x4x4: 01"]`, `"algorithms":["4x4x4:\n01"]`},
	{`"algorithms":["4x4x4: 01"]`, `"algorithms":["` + strings.Repeat("4x4x4: 01 ", 51) + `"]`},
	{`"algorithms":["4x4x4: 01"]`, `"algorithms":[` + strings.Repeat(`"x",`, 100_000) + `"x"]`},
	{`"step":3,"updates"`, `"step":-3,"updates"`},
	{`"step":3,"updates"`, `"step":3,"step":3,"updates"`},
	{`"step":3,"updates"`, `"Step":3,"updates"`},
	{`"step":3,"updates"`, `"unknown":3,"step":3,"updates"`},
	{`"best":{`, `"best":[{`},
	{`"xxh3":"`, `"xxh3":"0`},
	{`"xxh3":"`, `"xxh3":"X`},
}

func TestForgedManifests(t *testing.T) {
	body := bodyOf(t)
	if _, err := decode(seal(body)); err != nil {
		t.Fatal(err)
	}
	for _, change := range forgeries {
		forged := bytes.ReplaceAll(body, []byte(change[0]), []byte(change[1]))
		if bytes.Equal(forged, body) {
			t.Errorf("%s is not in the manifest", change[0])
		}
		if _, err := decode(seal(forged)); err == nil {
			t.Errorf("%s was taken for %s", change[1], change[0])
		} else {
			t.Logf("%s: %v", change[1], err)
		}
	}
	good := seal(body)
	for what, doc := range map[string][]byte{
		"nothing":       nil,
		"two documents": append(bytes.Clone(good), good...),
		"spaces":        append(bytes.Clone(good), ' '),
		"version 2":     bytes.Replace(good, []byte(`"version":1,`), []byte(`"version":2,`), 1),
		"another":       bytes.Replace(good, []byte(formatName), []byte("something"), 1),
		"cut off":       good[:len(good)/2],
		"cut short":     good[:60],
		"cut by one":    good[:len(good)-1],
		"version long":  bytes.Replace(good, []byte(`"version":1,`), bytes.Repeat([]byte("1"), 1e6), 1),
		"a key more":    bytes.Replace(good, []byte(`{"format"`), []byte(`{"x":1,"format"`), 1),
	} {
		if _, err := decode(doc); err == nil || len(err.Error()) > 300 {
			t.Errorf("%s: error %v", what, err)
		}
	}
}
