package below

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

// furnish makes files, and links where the text begins with "-> ". $ in a link is the directory of all.
func furnish(t *testing.T, files map[string]string) string {
	t.Helper()
	top := t.TempDir()
	for name, text := range files {
		path := filepath.Join(top, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		to, isLink := strings.CutPrefix(text, "-> ")
		if isLink {
			if err := os.Symlink(strings.ReplaceAll(to, "$", top), path); err != nil {
				t.Skip("this system makes no symbolic links for this user: ", err)
			}
		} else if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return top
}

// Links are followed inside of a directory, and from a snapshot of the hub's cache to the blobs of its repository.
func TestLinks(t *testing.T) {
	const snapshot, blob = "hub/models--a--b/snapshots/" + commit, "hub/models--a--b/blobs/beef"
	top := furnish(t, map[string]string{
		"secret":  "secret",
		"m/plain": "plain", "m/sub/deep": "deep",
		"m/inside": "-> sub/deep", "m/sub/up": "-> ../plain", "m/absolute": "-> $/m/plain", "m/back": "-> ../m/plain",
		"m/out": "-> ../secret", "m/far": "-> $/secret", "m/chain": "-> inside2", "m/inside2": "-> out",
		"m/dir": "-> ..", "m/loop": "-> loop", "m/dangling": "-> nothing", "m/gone": "-> ../nothing",
		"m2/x": "-> ../m/plain", "named": "-> m",
		blob: "blob", snapshot + "/file": "-> ../../blobs/beef", snapshot + "/sub/file": "-> ../../../blobs/beef",
		snapshot + "/out": "-> ../../../../secret", snapshot + "/other": "-> ../../../models--c--d/blobs/beef",
		snapshot + "/ref": "-> ../../refs/main", "hub/models--a--b/refs/main": "ref",
		"hub/models--a--b/blobs/chain": "-> $/secret", snapshot + "/chain": "-> ../../blobs/chain",
		"hub/models--c--d/blobs/beef":                            "blob of another",
		"hub/models--e--f/blobs":                                 "-> $",
		"hub/models--e--f/snapshots/" + commit + "/secret":       "-> ../../blobs/secret",
		"hub/models--g--h/blobs/beef":                            "blob",
		"hub/models--g--h/snapshots/main/file":                   "-> ../../blobs/beef",
		"hub/plain/blobs/beef":                                   "blob",
		"hub/plain/snapshots/" + commit + "/file":                "-> ../../blobs/beef",
		"hub/models--a--b/snapshots/" + commit + "/sub/up/again": "-> ../../../../../../secret",
	})
	for name, want := range map[string]string{
		"m plain": "plain", "m sub/deep": "deep", "m inside": "deep", "m sub/up": "plain", "m absolute": "plain",
		"m back": "plain", "named inside": "deep",
		"m out": "out of the directory", "m far": "out of the directory", "m chain": "out of the directory",
		"m dir/secret": "out of the directory", "m2 x": "out of the directory", "named out": "out of the directory",
		"m ../secret": "inside of the directory", "m /etc/passwd": "inside of the directory",
		"m loop": "too many levels", "m dangling": "no such file", "m gone": "no such file", "m nothing": "no such file",
		"m sub":            "it is a directory",
		snapshot + " file": "blob", snapshot + " sub/file": "blob", snapshot + "/sub file": "blob",
		snapshot + " out": "out of the directory", snapshot + " other": "out of the directory",
		snapshot + " ref": "out of the directory", snapshot + " chain": "out of the directory",
		snapshot + "/sub up/again":                         "out of the directory",
		"hub/models--e--f/snapshots/" + commit + " secret": "out of the directory",
		"hub/models--g--h/snapshots/main file":             "out of the directory",
		"hub/plain/snapshots/" + commit + " file":          "out of the directory",
	} {
		dir, file, _ := strings.Cut(name, " ")
		doc, err := Read(filepath.Join(top, dir), file, 100)
		_, statErr := Stat(filepath.Join(top, dir), file)
		if got := string(doc); err == nil && (got != want || statErr != nil) {
			t.Errorf("%s: %q and %v, want %q", name, got, statErr, want)
		}
		if err == nil {
			continue
		}
		var of *fs.PathError
		if !strings.Contains(err.Error(), want) || statErr == nil || !errors.As(err, &of) ||
			of.Path != filepath.Join(top, dir, file) {
			t.Errorf("%s: %v; Stat: %v, want %q", name, err, statErr, want)
		}
		if missing := want == "no such file"; missing != errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v matches ErrNotExist: %v", name, err, !missing)
		}
	}
}

// Links into the blobs of the cache that the user has configured are followed from every directory, also where the
// blobs are on another disk; other links are if the user allows them.
func TestAllowedLinks(t *testing.T) {
	const repo = "hub/models--a--b"
	hash := strings.Repeat("beef", 16)
	top := furnish(t, map[string]string{
		repo + "/blobs/" + hash: "blob", repo + "/blobs/" + commit: "small blob",
		repo + "/blobs/" + hash + ".incomplete": "part", repo + "/refs/main": "ref",
		repo + "/snapshots/" + commit + "/w": "-> ../../blobs/" + hash,
		"hub/models--c--d/blobs":             "-> $/disk2", "disk2/" + hash: "far blob",
		"hub/models--c--d/snapshots/" + commit + "/w": "-> ../../blobs/" + hash,
		"hub/plain/blobs/" + hash:                     "no repository", "hub/models--a--b/blobs/sub/" + hash: "deep",
		"hub/models--e--f/blobs/" + hash: "-> $/secret", "secret": "secret",
		"other/models--a--b/blobs/" + hash: "of another cache",
		"alias":                            "-> hub",
		"m/absolute":                       "-> $/" + repo + "/blobs/" + hash,
		"m/relative":                       "-> ../" + repo + "/blobs/" + hash,
		"m/small":                          "-> $/" + repo + "/blobs/" + commit,
		"m/alias":                          "-> $/alias/models--a--b/blobs/" + hash,
		"m/chain":                          "-> again", "m/again": "-> $/" + repo + "/snapshots/" + commit + "/w",
		"m/snap": "-> $/" + repo + "/snapshots/" + commit, "m/far": "-> $/hub/models--c--d/blobs/" + hash,
		"m/part": "-> $/" + repo + "/blobs/" + hash + ".incomplete", "m/ref": "-> $/" + repo + "/refs/main",
		"m/plain": "-> $/hub/plain/blobs/" + hash, "m/deep": "-> $/" + repo + "/blobs/sub/" + hash,
		"m/hidden": "-> $/hub/models--e--f/blobs/" + hash, "m/other": "-> $/other/models--a--b/blobs/" + hash,
		"m/direct": "-> $/disk2/" + hash, "m/secret": "-> ../secret",
		"m/gone": "-> $/" + repo + "/blobs/" + strings.Repeat("0", 64), "m/loop": "-> loop",
	})
	t.Cleanup(func() { allowed.Store(nil) })
	const farSnapshot = "hub/models--c--d/snapshots/" + commit + " w"
	intoCache := map[string]string{"m absolute": "blob", "m relative": "blob", "m small": "small blob", "m alias": "blob",
		"m chain": "blob", "m snap/w": "blob", "m far": "far blob", farSnapshot: "far blob"}
	elsewhere := map[string]string{"m part": "part", "m ref": "ref", "m plain": "no repository", "m deep": "deep",
		"m hidden": "secret", "m other": "of another cache", "m direct": "far blob", "m secret": "secret"}
	for what, x := range map[string]struct {
		links Links
		good  []map[string]string
		bad   []map[string]string
	}{
		"nothing": {Links{}, nil, []map[string]string{intoCache, elsewhere}},
		"the cache": {Links{HubCache: filepath.Join(top, "hub")},
			[]map[string]string{intoCache}, []map[string]string{elsewhere}},
		"the cache through a link": {Links{HubCache: filepath.Join(top, "alias")},
			[]map[string]string{intoCache}, []map[string]string{elsewhere}},
		"a cache that is not there": {Links{HubCache: filepath.Join(top, "none")}, nil,
			[]map[string]string{intoCache, elsewhere}},
		"all": {Links{Anywhere: true}, []map[string]string{intoCache, elsewhere}, nil},
	} {
		Allow(x.links)
		read := func(name string) (string, error) {
			dir, file, _ := strings.Cut(name, " ")
			doc, err := Read(filepath.Join(top, dir), file, 100)
			return string(doc), err
		}
		for _, names := range x.good {
			for name, want := range names {
				if doc, err := read(name); doc != want || err != nil {
					t.Errorf("%s is allowed, %s: %q, %v", what, name, doc, err)
				}
			}
		}
		for _, names := range x.bad {
			for name := range names {
				if doc, err := read(name); err == nil || !strings.Contains(err.Error(), FollowVariable+"=1") {
					t.Errorf("%s is allowed, %s: %q, %v", what, name, doc, err)
				}
			}
		}
		for name, want := range map[string]string{"m gone": "no such file", "m loop": "too many levels",
			"m ../secret": "inside of", "m snap": "it is a directory"} {
			if what != "all" && name == "m snap" {
				want = "out of the directory"
			}
			if doc, err := read(name); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s is allowed, %s: %q, %v", what, name, doc, err)
			}
		}
	}
}

// The environment of the process, with its tokens, is a file that no consent to links means.
func TestAllowedLinksIntoTheKernel(t *testing.T) {
	const environment = "/proc/self/environ"
	if _, err := os.Stat(environment); err != nil {
		t.Skipf("%s is not there", environment)
	}
	top := furnish(t, map[string]string{"m/link": "-> " + environment})
	t.Cleanup(func() { allowed.Store(nil) })
	Allow(Links{Anywhere: true})
	if doc, err := Read(filepath.Join(top, "m"), "link", 1<<20); err == nil ||
		!strings.Contains(err.Error(), "of the kernel's") {
		t.Errorf("%d bytes, %v", len(doc), err)
	}
}

// A directory that is named by a path that is relative, or that goes through a link, is the same directory.
func TestRelative(t *testing.T) {
	top := furnish(t, map[string]string{"m/a": "text", "m/b": "-> a", "m/c": "-> $/m/a", "n": "-> m"})
	t.Chdir(filepath.Join(top, "m"))
	for _, dir := range []string{".", "../n", "../m", top + "/n"} {
		for _, name := range []string{"a", "b", "c"} {
			if doc, err := Read(dir, name, 4); string(doc) != "text" {
				t.Errorf("%s in %s: %q, %v", name, dir, doc, err)
			}
		}
	}
	t.Chdir(filepath.Join(top, "n"))
	if doc, err := Read(".", "c", 4); string(doc) != "text" {
		t.Errorf("%q, %v", doc, err)
	}
}

// No more than the limit is read, whatever the length that the system states: that of endless files is 0.
func TestLimit(t *testing.T) {
	top := furnish(t, map[string]string{"a": "12345", "empty": "", "sparse": "x"})
	if err := os.Truncate(filepath.Join(top, "sparse"), 1<<40); err != nil {
		t.Skip("the file system has no sparse files of this length: ", err)
	}
	for name, c := range map[string]struct {
		limit int64
		want  string
	}{"a": {5, "12345"}, "empty": {0, ""}} {
		if doc, err := Read(top, name, c.limit); string(doc) != c.want || err != nil {
			t.Errorf("%s: %q, %v", name, doc, err)
		}
	}
	for name, limit := range map[string]int64{"a": 4, "sparse": 1000} {
		if doc, err := Read(top, name, limit); err == nil || !strings.Contains(err.Error(), "more than the") {
			t.Errorf("%s: %d bytes, %v", name, len(doc), err)
		}
	}
	const endless = "/proc/self/pagemap"
	if info, err := os.Stat(endless); err != nil || info.Size() != 0 {
		t.Skipf("%s is not there", endless)
	}
	if doc, err := ReadFile(endless, 1000); err == nil {
		t.Errorf("%d bytes", len(doc))
	}
}

func TestNames(t *testing.T) {
	top := furnish(t, map[string]string{"m/sub/a": "", "m/out": "-> $", "m/in": "-> sub", "m/file": ""})
	for name, want := range map[string]string{"sub": "a", "in": "a", "out": "out of the directory", "no": "no such file",
		"file": "not a directory"} {
		names, err := Names(filepath.Join(top, "m"), name)
		if err == nil && strings.Join(names, " ") != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %s", name, names, err, want)
		}
	}
}
