package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

var (
	made  = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	files = []file{
		{"share/doc/millrace/LICENSE", []byte("licence"), false},
		{"share/man/man1/millrace.1", []byte("page"), false},
		{"share/zsh/site-functions/_millrace", []byte("script"), false},
		{"bin/millrace", []byte("odd"), true},
	}
)

func TestVersions(t *testing.T) {
	for tag, want := range map[string][2]string{ // pip's, and that of dpkg and rpm
		"v1.2.3":        {"1.2.3", "1.2.3"},
		"v1.2.3-rc.1":   {"1.2.3rc1", "1.2.3~rc1"},
		"v1.2.3-beta.2": {"1.2.3b2", "1.2.3~beta2"},
		"v0.0.0-20261122190818-f8739cd3816f": {"0.0.0.dev20261122190818+f8739cd3816f",
			"0.0.0~20261122190818+f8739cd3816f"},
		"v1.2.4-0.20261122190818-f8739cd3816f": {"1.2.4.dev20261122190818+f8739cd3816f",
			"1.2.4~20261122190818+f8739cd3816f"},
		"v1.2.3-rc.1.0.20261122190818-f8739cd3816f": {"1.2.3.dev20261122190818+f8739cd3816f",
			"1.2.3~20261122190818+f8739cd3816f"},
		"v1.2.3-rc1":     {},
		"v1.2.3-gamma.1": {},
		"v1.2":           {},
		"1.2.3":          {},
		"(devel)":        {},
		"":               {},
		"v1.2.3+dirty":   {},
	} {
		v, err := parseVersion(tag)
		if want[0] == "" {
			if err == nil {
				t.Errorf("%q is a version: %+v", tag, v)
			}
			continue
		}
		if err != nil || v.python() != want[0] || v.distribution() != want[1] {
			t.Errorf("%q: %s and %s, want %q; %v", tag, v.python(), v.distribution(), want, err)
		}
		if name := v.debFile("amd64"); !keptName.MatchString(name) || !strings.HasPrefix(name, "millrace_"+v.core) {
			t.Errorf("%q: the Debian package's file is %s", tag, name)
		}
		if name := v.rpmFile("amd64"); !keptName.MatchString(name) || !strings.HasPrefix(name, "millrace-"+v.core) {
			t.Errorf("%q: the RPM package's file is %s", tag, name)
		}
	}
}

// keptName matches names of files that GitHub does not change in a release.
var keptName = regexp.MustCompile(`^[A-Za-z0-9._+-]+$`)

// What RECORD says is what the archive has, in its order, and the program can be executed.
func TestWheel(t *testing.T) {
	v, err := parseVersion("v1.2.3-rc.4")
	if err != nil {
		t.Fatal(err)
	}
	for p := range wheelTags {
		name, data, err := makeWheel(p, v, files, made)
		if err != nil || !strings.HasPrefix(name, "millrace-1.2.3rc4-py3-none-") {
			t.Fatalf("%s: %v", name, err)
		}
		z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		var want, got []string
		for _, f := range z.File {
			r, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			if isScript := f.Name == "millrace-1.2.3rc4.data/scripts/millrace"; isScript != (f.Mode()&0o111 != 0) {
				t.Errorf("%s has mode %v", f.Name, f.Mode())
			}
			if !f.Modified.Equal(made) {
				t.Errorf("%s is of %v", f.Name, f.Modified)
			}
			sum := sha256.Sum256(text)
			line := fmt.Sprintf("%s,sha256=%s,%d", f.Name, base64.RawURLEncoding.EncodeToString(sum[:]), len(text))
			if strings.HasSuffix(f.Name, "/RECORD") {
				rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
				if err != nil {
					t.Fatal(err)
				}
				for _, row := range rows {
					got = append(got, strings.Join(row, ","))
				}
				line = f.Name + ",,"
			}
			want = append(want, line)
		}
		if !slices.Equal(want, got) {
			t.Errorf("%s: RECORD has\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// saysOfPackage compares what a program says of a package with texts that have to be in it.
type saysOfPackage struct {
	args []string
	want []string
}

func (s saysOfPackage) check(t *testing.T, data []byte) {
	t.Helper()
	if _, err := exec.LookPath(s.args[0]); err != nil {
		t.Skipf("%s is not installed; make release-check has it", s.args[0])
	}
	path := filepath.Join(t.TempDir(), "package")
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	got, err := exec.Command(s.args[0], append(s.args[1:], path)...).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %v", s.args, err)
	}
	for _, want := range s.want {
		if !strings.Contains(string(got), want) {
			t.Errorf("%v has no %q:\n%s", s.args, want, got)
		}
	}
}

func TestDeb(t *testing.T) {
	v, err := parseVersion("v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	data, err := makeDeb("amd64", v, files, made)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []saysOfPackage{
		{[]string{"dpkg-deb", "--contents"}, []string{"-rwxr-xr-x 0/0 ", "./usr/bin/millrace\n",
			"./usr/share/man/man1/millrace.1.gz\n",
			"./usr/share/zsh/vendor-completions/_millrace\n",
			"./usr/share/doc/millrace/changelog.gz\n", "drwxr-xr-x 0/0 ", " ./\n"}},
		{[]string{"dpkg-deb", "--info"}, []string{" Version: 1.2.3\n", " Architecture: amd64\n", "md5sums",
			"computes\n  Weights,", "\n  precision.\n"}},
	} {
		s.check(t, data)
	}
}

func TestRPM(t *testing.T) {
	v, err := parseVersion("v1.2.3-rc.1")
	if err != nil {
		t.Fatal(err)
	}
	data, err := makeRPM("arm64", v, files, made)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []saysOfPackage{
		{[]string{"rpm", "--checksig", "--verbose"}, []string{"SHA256 digest: OK"}},
		{[]string{"rpm", "--query", "--package", "--queryformat",
			"[%{FILEMODES:perms} %{FILEUSERNAME} %{FILEFLAGS:fflags} %{FILEMTIMES} %{FILENAMES}\n]"}, []string{
			"-rwxr-xr-x root  1767323045 /usr/bin/millrace\n",
			"-rw-r--r-- root d 1767323045 /usr/share/man/man1/millrace.1\n",
			"-rw-r--r-- root  1767323045 /usr/share/zsh/site-functions/_millrace\n",
			"-rw-r--r-- root l 1767323045 /usr/share/licenses/millrace/LICENSE\n",
			"drwxr-xr-x root  1767323045 /usr/share/doc/millrace\n"}},
		{[]string{"rpm", "--query", "--info", "--requires", "--recommends", "--package"}, []string{
			"Version     : 1.2.3~rc1\n", "Architecture: aarch64\n", "License     : Apache-2.0\n", "glibc\n",
			"ca-certificates\n", "Build Host  : localhost\n", ":\nWeights, gradients"}},
	} {
		s.check(t, data)
	}
}

// The order in which files are found leaves no trace.
func TestSameBytes(t *testing.T) {
	v, err := parseVersion("v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	turned := slices.Clone(files)
	slices.Reverse(turned)
	for name, make := range map[string]func([]file) ([]byte, error){
		"archive": func(files []file) ([]byte, error) { return tarGzip("a/", files, made) },
		"deb":     func(files []file) ([]byte, error) { return makeDeb("arm64", v, files, made) },
		"rpm":     func(files []file) ([]byte, error) { return makeRPM("arm64", v, files, made) },
		"wheel": func(files []file) ([]byte, error) {
			_, data, err := makeWheel(platform{"darwin", "arm64", true}, v, files, made)
			return data, err
		},
	} {
		a, err := make(files)
		if err != nil {
			t.Fatal(err)
		}
		b, err := make(turned)
		if err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s: other bytes for the same files in another order; %v", name, err)
		}
	}
}

func TestBillOfMaterials(t *testing.T) {
	p := &program{platform: platform{"linux", "amd64", false}, data: []byte("program"), info: &debug.BuildInfo{
		GoVersion: "go1.26.1",
		Main:      debug.Module{Path: "example.com/m", Version: "v1.2.3"},
		Deps: []*debug.Module{{Path: "example.com/d", Version: "v0.1.0",
			Sum: "h1:" + base64.StdEncoding.EncodeToString(make([]byte, 32))}},
		Settings: []debug.BuildSetting{{Key: "GOAMD64", Value: "v1"}},
	}, source: "../../.."}
	data, err := billOfMaterials(p, made)
	if err != nil {
		t.Fatal(err)
	}
	var b cyclonedx.BOM
	if err := cyclonedx.NewBOMDecoder(bytes.NewReader(data), cyclonedx.BOMFileFormatJSON).Decode(&b); err != nil {
		t.Fatal(err)
	}
	var urls []string
	for _, c := range *b.Components {
		urls = append(urls, c.PackageURL)
	}
	want := []string{"pkg:golang/std@v1.26.1", "pkg:golang/example.com/d@v0.1.0", "pkg:npm/uplot@1.6.32"}
	if !slices.Equal(urls, want) {
		t.Errorf("%q, want %q", urls, want)
	}
	if hash := (*(*b.Components)[1].Hashes)[0].Value; hash != strings.Repeat("0", 64) {
		t.Errorf("the hash of a module is %s", hash)
	}
	if b.Metadata.Component.PackageURL != "pkg:golang/example.com/m@v1.2.3" ||
		b.Metadata.Timestamp != "2026-01-02T03:04:05Z" {
		t.Errorf("%+v", b.Metadata)
	}
}

// TestBuildEnv: what go env -w has set does not come into a build, except where modules come from.
func TestBuildEnv(t *testing.T) {
	settings := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(settings, []byte("GOFLAGS=-tags=mine\nGOPROXY=https://proxy.invalid\nGOAMD64=v3\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOENV", settings)
	for _, name := range []string{"GOFLAGS", "GOPROXY", "GOAMD64"} { // an empty variable reads as an absent one
		t.Setenv(name, "")
	}
	asked := exec.Command("go", "env", "GOFLAGS", "GOPROXY", "GOAMD64")
	mine, err := asked.Output()
	if want := "-tags=mine\nhttps://proxy.invalid\nv3\n"; err != nil || string(mine) != want {
		t.Fatalf("go env has %q, want %q, %v", mine, want, err)
	}
	env, err := buildEnv(platform{os: "linux", arch: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	asked = exec.Command("go", "env", "GOFLAGS", "GOPROXY", "GOAMD64")
	asked.Env = env
	built, err := asked.Output()
	if want := "\nhttps://proxy.invalid\nv1\n"; err != nil || string(built) != want {
		t.Errorf("go build has %q, want %q, %v", built, want, err)
	}
}
