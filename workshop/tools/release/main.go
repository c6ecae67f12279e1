// Command release makes the files of a release from the commit that a checkout is at: programs for each platform in
// archives, wheels, Debian and RPM packages, with shell completion, man pages and the licences of what is linked, a bill
// of materials for each program, and SHA256SUMS.
//
// It builds in a clone, so changes that are not committed, and the directory, leave no trace. All times are the
// commit's ($SOURCE_DATE_EPOCH overrides it). The same commit and the same Go release therefore give the same bytes.
// go build finds the version in git: the commit's tag, or a pseudo-version; it is what millrace
// --version says.
package main

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// platforms lists the platforms that programs are built for. A static program has no GPU support and needs nothing of
// the system; one that opens NVIDIA's libraries needs glibc.
var platforms = []platform{
	{"linux", "amd64", false}, {"linux", "amd64", true},
	{"linux", "arm64", false}, {"linux", "arm64", true},
	{"darwin", "arm64", true},
}

func main() {
	repository := flag.String("repository", ".", "checkout whose commit is released")
	out := flag.String("out", "dist", "directory to write; what it has is deleted")
	only := flag.String("only", "", "a platform such as linux/amd64, to make its packages alone")
	flag.Parse()
	made := slices.DeleteFunc(slices.Clone(platforms), func(p platform) bool {
		return *only != "" && *only != p.os+"/"+p.arch
	})
	if len(made) == 0 {
		fmt.Fprintf(os.Stderr, "release: -only %s: there is no such platform\n", *only)
		os.Exit(2)
	}
	if err := release(*repository, *out, made); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func release(repository, out string, platforms []platform) error {
	changes, err := exec.Command("git", "-C", repository, "status", "--porcelain").Output()
	if err != nil {
		return fmt.Errorf("git status in %s: %w; releases are made from a git checkout", repository, err)
	}
	if len(changes) > 0 {
		fmt.Fprintln(os.Stderr, "release: changes that are not committed are left out")
	}
	work, err := os.MkdirTemp("", "millrace-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	source := filepath.Join(work, "source")
	if err := run(repository, "git", "clone", "--quiet", ".", source); err != nil {
		return err
	}
	programs := map[platform]*program{}
	for _, p := range platforms {
		if programs[p], err = buildProgram(source, filepath.Join(work, p.String()), p); err != nil {
			return err
		}
	}
	own := programs[platform{runtime.GOOS, runtime.GOARCH, true}]
	if own == nil {
		return fmt.Errorf("%s/%s runs none of the programs, and one of them has to print its man pages: use another machine",
			runtime.GOOS, runtime.GOARCH)
	}
	made, err := madeTime(own)
	if err != nil {
		return err
	}
	shared, err := sharedFiles(source, work, own)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o777); err != nil {
		return err
	}
	var sums strings.Builder
	for _, p := range platforms {
		artifacts, err := artifactsOf(programs[p], shared, made)
		if err != nil {
			return fmt.Errorf("%v: %w", p, err)
		}
		for _, a := range artifacts {
			if err := os.WriteFile(filepath.Join(out, a.path), a.data, 0o664); err != nil {
				return err
			}
			fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(a.data), a.path)
		}
	}
	if err := os.WriteFile(filepath.Join(out, "SHA256SUMS"), []byte(sums.String()), 0o664); err != nil {
		return err
	}
	fmt.Printf("%s: millrace %s, %s\n%s", out, own.info.Main.Version, own.info.GoVersion, &sums)
	return nil
}

// artifactsOf are the files that are published for a program.
func artifactsOf(p *program, shared []file, made time.Time) ([]file, error) {
	name := "millrace-" + p.info.Main.Version + "-" + p.platform.String()
	bill, err := billOfMaterials(p, made)
	if err != nil {
		return nil, err
	}
	licences, err := notices(p)
	if err != nil {
		return nil, err
	}
	files := append([]file{
		{"bin/millrace", p.data, true},
		{"share/doc/millrace/THIRD-PARTY-LICENSES", licences, false},
		{"share/doc/millrace/millrace.cdx.json", bill, false},
	}, shared...)
	archive, err := tarGzip(name+"/", files, made)
	if err != nil {
		return nil, err
	}
	artifacts := []file{{path: name + ".tar.gz", data: archive}, {path: name + ".cdx.json", data: bill}}
	version, err := parseVersion(p.info.Main.Version)
	if err != nil {
		return nil, err
	}
	wheelName, wheel, err := makeWheel(p.platform, version, files, made)
	if err != nil {
		return nil, err
	}
	artifacts = append(artifacts, file{path: wheelName, data: wheel})
	if p.platform.os == "linux" && !p.platform.static {
		deb, err := makeDeb(p.platform.arch, version, files, made)
		if err != nil {
			return nil, err
		}
		rpm, err := makeRPM(p.platform.arch, version, files, made)
		if err != nil {
			return nil, err
		}
		artifacts = append(artifacts, file{path: version.debFile(p.platform.arch), data: deb},
			file{path: version.rpmFile(p.platform.arch), data: rpm})
	}
	return artifacts, nil
}

// madeTime is $SOURCE_DATE_EPOCH, or the time of the commit.
func madeTime(p *program) (time.Time, error) {
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
		}
		return time.Unix(seconds, 0).UTC(), nil
	}
	return time.Parse(time.RFC3339, p.setting("vcs.time"))
}

// run runs a command in a directory; its error has what the command said.
func run(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(said)))
	}
	return nil
}
