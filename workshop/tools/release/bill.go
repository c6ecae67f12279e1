package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// billOfMaterials lists what a program was linked from, as CycloneDX JSON, from what the program says of itself (go
// version -m).
func billOfMaterials(p *program, made time.Time) ([]byte, error) {
	b := cyclonedx.NewBOM()
	sum := sha256.Sum256(p.data)
	b.SerialNumber = "urn:uuid:" + uuid(sum)
	main := component(&p.info.Main)
	main.Type = cyclonedx.ComponentTypeApplication
	main.Licenses = &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}}
	main.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
	properties := []cyclonedx.Property{{Name: "platform", Value: p.platform.String()}}
	for _, s := range p.info.Settings {
		properties = append(properties, cyclonedx.Property{Name: "go:build:" + s.Key, Value: s.Value})
	}
	main.Properties = &properties
	b.Metadata = &cyclonedx.Metadata{Timestamp: made.UTC().Format(time.RFC3339), Component: &main}

	modules := []*debug.Module{{Path: "std", Version: "v" + strings.TrimPrefix(p.info.GoVersion, "go")}}
	var components []cyclonedx.Component
	var references []string
	for _, m := range append(modules, p.info.Deps...) {
		c := component(m)
		components = append(components, c)
		references = append(references, c.BOMRef)
	}
	library, err := pageLibrary(p.source)
	if err != nil {
		return nil, err
	}
	components = append(components, library)
	references = append(references, library.BOMRef)
	b.Components = &components
	b.Dependencies = &[]cyclonedx.Dependency{{Ref: main.BOMRef, Dependencies: &references}}
	var out bytes.Buffer
	// Scanners of today read 1.6.
	encoder := cyclonedx.NewBOMEncoder(&out, cyclonedx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false)
	err = encoder.EncodeVersion(b, cyclonedx.SpecVersion1_6)
	return out.Bytes(), err
}

// pageLibrary is the library of JavaScript in the page that the program shows, by the script that fetched it.
func pageLibrary(source string) (cyclonedx.Component, error) {
	script, err := os.ReadFile(filepath.Join(source, pageTree, "vendor.sh"))
	if err != nil {
		return cyclonedx.Component{}, err
	}
	found := regexp.MustCompile(`(?m)^version=(\S+)$`).FindSubmatch(script)
	if found == nil {
		return cyclonedx.Component{}, errors.New(pageTree + "/vendor.sh has no line version=")
	}
	version := string(found[1])
	url := "pkg:npm/uplot@" + version
	return cyclonedx.Component{Type: cyclonedx.ComponentTypeLibrary, Name: "uplot", Version: version, BOMRef: url,
		PackageURL: url,
		Licenses:   &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "MIT"}}}}, nil
}

// component is a module. The hash of one that go.sum has is that of its files (golang.org/x/mod/sumdb/dirhash).
func component(m *debug.Module) cyclonedx.Component {
	url := "pkg:golang/" + m.Path + "@" + m.Version
	c := cyclonedx.Component{Type: cyclonedx.ComponentTypeLibrary, Name: m.Path, Version: m.Version, BOMRef: url,
		PackageURL: url}
	if sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:")); err == nil &&
		len(sum) == sha256.Size {
		c.Hashes = &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: hex.EncodeToString(sum)}}
	}
	return c
}

// uuid is a UUID of version 8 (RFC 9562, 5.8), made of a hash, so that the same program has the same one.
func uuid(sum [sha256.Size]byte) string {
	id := sum[:16]
	id[6] = id[6]&0x0f | 0x80
	id[8] = id[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}
