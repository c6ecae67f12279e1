package standin

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/millrace/millrace/workshop/cudatest/ptx"
)

// LoadPTX reads PTX text. Its kernels run on package ptx, the blocks of a launch on that many goroutines.
func LoadPTX(text []byte, workers int) (*Image, error) {
	m, err := ptx.Parse(text)
	if err != nil {
		return nil, err
	}
	return &Image{Version: m.Version, Target: m.Target, Kernel: func(name string) *Kernel {
		k := m.Kernel(name)
		if k == nil {
			return nil
		}
		kernel := &Kernel{SharedBytes: k.SharedBytes, MaxThreads: k.MaxThreads, ExactThreads: k.ExactThreads}
		for _, p := range k.Params() {
			kernel.Params = append(kernel.Params, Param{p.Offset, p.Bytes})
		}
		kernel.Run = func(mem ptx.Memory, grid, block [3]uint32, sharedBytes uint32, params []byte) error {
			return k.Run(mem, ptx.Config{Grid: grid, Block: block, SharedBytes: sharedBytes, Params: params, Workers: workers})
		}
		return kernel
	}}, nil
}

var (
	versionLine = regexp.MustCompile(`(?m)^\s*\.version\s+(\S+)`)
	targetLine  = regexp.MustCompile(`(?m)^\s*\.target\s+(\w+)`)
)

// LazyPTX is LoadPTX for programs that load many kernels and run few: the text is parsed when a kernel of it is
// launched, and one that cannot be parsed panics then.
func LazyPTX(text []byte, workers int) (*Image, error) {
	version, target := versionLine.FindSubmatch(text), targetLine.FindSubmatch(text)
	if version == nil || target == nil {
		return nil, errors.New("no version or no target")
	}
	text = bytes.Clone(text)
	parse := sync.OnceValues(func() (*Image, error) { return LoadPTX(text, workers) })
	return &Image{
		Version: string(version[1]), Target: string(target[1]),
		Has: func(name string) bool { return hasEntry(text, name) },
		Kernel: func(name string) *Kernel {
			parsed, err := parse()
			if err != nil {
				panic(err)
			}
			return parsed.Kernel(name)
		},
	}, nil
}

// hasEntry reports whether PTX text has a kernel of a name: ".entry NAME(".
func hasEntry(text []byte, name string) bool {
	for {
		_, after, found := bytes.Cut(text, []byte(".entry"))
		if !found {
			return false
		}
		if rest, is := bytes.CutPrefix(bytes.TrimSpace(after), []byte(name)); is &&
			bytes.HasPrefix(bytes.TrimSpace(rest), []byte("(")) {
			return true
		}
		text = after
	}
}

// ptxOf lists the newest PTX that a driver reads (PTX ISA, "Release Notes").
var ptxOf = []struct {
	driver int32
	ptx    string
}{
	{13000, "9.0"}, {12090, "8.8"}, {12080, "8.7"}, {12070, "8.6"}, {12050, "8.5"}, {12040, "8.4"}, {12030, "8.3"},
}

// newestPTX is the newest PTX version that a driver's compiler reads.
func newestPTX(driverVersion int32) string {
	for _, row := range ptxOf {
		if driverVersion >= row.driver {
			return row.ptx
		}
	}
	return "8.2"
}

// comparePTX orders versions such as 8.4; what is not one, as with kernels in Go, comes first.
func comparePTX(a, b string) int {
	number := func(v string) int {
		major, minor, _ := strings.Cut(v, ".")
		x, _ := strconv.Atoi(major)
		y, _ := strconv.Atoi(minor)
		return 1000*x + y
	}
	return number(a) - number(b)
}

// runsOn reports whether PTX for a target compiles for a GPU: one that is not older, or, if the target ends with a,
// just this one.
func runsOn(target string, capability [2]int32) bool {
	if target == "" {
		return true
	}
	name := fmt.Sprintf("sm_%d%d", capability[0], capability[1])
	if base, isExact := strings.CutSuffix(target, "a"); isExact {
		return base == name
	}
	number := func(s string) int {
		n, _ := strconv.Atoi(strings.TrimPrefix(s, "sm_"))
		return n
	}
	return number(target) <= number(name)
}
