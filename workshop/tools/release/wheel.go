package main

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"
)

// wheelTags are the platforms that pip may install a program on. The program with GPU support needs a glibc, of any
// age; 2.17 is the oldest that pip has a name for. The static one is for systems without glibc, and pip takes it only
// there. macOS 12 is the oldest that Go supports.
var wheelTags = map[platform][]string{
	{"linux", "amd64", false}: {"manylinux_2_17_x86_64", "manylinux2014_x86_64"},
	{"linux", "amd64", true}:  {"musllinux_1_1_x86_64"},
	{"linux", "arm64", false}: {"manylinux_2_17_aarch64", "manylinux2014_aarch64"},
	{"linux", "arm64", true}:  {"musllinux_1_1_aarch64"},
	{"darwin", "arm64", true}: {"macosx_12_0_arm64"},
}

const metadata = `Metadata-Version: 2.4
Name: millrace
Version: %s
Summary: Trains language models that do not fit on the device that computes
Project-URL: Source, https://github.com/millrace/millrace
License-Expression: Apache-2.0
License-File: LICENSE
License-File: THIRD-PARTY-LICENSES
Classifier: Environment :: Console
Classifier: Programming Language :: Go
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Requires-Python: >=3.7
Description-Content-Type: text/markdown

Millrace trains language models that do not fit on the device that computes: weights, gradients and optimizer state live
in host memory and on disk, and each layer's weights are streamed to the device. It is one Go program. This package only
installs it; Python is not used to run it.
`

// makeWheel is a wheel (PyPA's "Binary distribution format") whose script is the program. Programs in a wheel's
// scripts need no interpreter.
func makeWheel(p platform, v version, files []file, made time.Time) (name string, data []byte, err error) {
	tags := wheelTags[p]
	base := "millrace-" + v.python()
	info := base + ".dist-info/"
	wheel := "Wheel-Version: 1.0\nGenerator: millrace-release\nRoot-Is-Purelib: false\n"
	for _, tag := range tags {
		wheel += "Tag: py3-none-" + tag + "\n"
	}
	var all []file
	for _, f := range files {
		rest := strings.TrimPrefix(f.path, "share/doc/millrace/")
		switch {
		case f.path == "bin/millrace":
			f.path = base + ".data/scripts/millrace"
		case rest == "LICENSE", rest == "THIRD-PARTY-LICENSES":
			f.path = info + "licenses/" + rest
		case rest == "millrace.cdx.json":
			f.path = info + "sboms/" + rest // PEP 770
		default:
			f.path = base + ".data/data/" + f.path
		}
		all = append(all, f)
	}
	// The archive's own files come last, as the format recommends, and the list of all at the end.
	all = append(sorted(all), file{path: info + "METADATA", data: fmt.Appendf(nil, metadata, v.python())},
		file{path: info + "WHEEL", data: []byte(wheel)})
	var record strings.Builder
	for _, f := range all {
		sum := sha256.Sum256(f.data)
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", f.path, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.data))
	}
	fmt.Fprintf(&record, "%sRECORD,,\n", info)
	all = append(all, file{path: info + "RECORD", data: []byte(record.String())})

	var b bytes.Buffer
	z := zip.NewWriter(&b)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) {
		return flate.NewWriter(w, flate.BestCompression)
	})
	for _, f := range all {
		header := &zip.FileHeader{Name: f.path, Method: zip.Deflate, Modified: made}
		header.SetMode(fs.FileMode(mode(f)))
		w, err := z.CreateHeader(header)
		if err != nil {
			return "", nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return "", nil, err
		}
	}
	err = z.Close()
	return base + "-py3-none-" + strings.Join(tags, ".") + ".whl", b.Bytes(), err
}
