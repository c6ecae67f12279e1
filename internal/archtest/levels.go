package archtest

import "strings"

// A level of the table, lowest first. "x/..." is every package below x; a package that is named itself goes by its
// name.
var levels = [][]string{
	0: {"batch", "tensor", "trace", "hostmem", "vfs", "internal/...", "data/tokenizer", "data/template", "data/parquet",
		"hf/hub", "hf/hub/hubtest", "runfile/othertrainers", "objective"},
	1: {"hf", "data", "internal/console", "internal/outside", "data/parquet/oracle", "device", "store", "store/storetest",
		"report", "report/page", "trace/tensorboard"},
	2:  {"device/...", "workshop/cudatest/...", "workshop/kerneltest", "trace/tensorboard/tensorboardtest"},
	3:  {"nn", "optim", driverList},
	4:  {"model", "model/modeltest"},
	5:  {"plan", "plan/plantest", "gguf"},
	6:  {"stream", "stream/streamtest", "checkpoint", "runfile", "timeline"},
	7:  {"internal/blame", "runfile/convert"},
	8:  {"probe", "rehearse"},
	9:  {"train/hosts", "train/notify", "train/rl/reward", "train/rl/sampler", "train/rundir", "train/sweep"},
	10: {"train/rl/server", "train/session", "serve", "train/trackers"},
	11: {"train/rl/server/servertest", "train/source"},
	12: {"train/export", "train/generate", "train/reference", "train/rl", "train/traintest"},
	13: {"train", "train/verbs"},
	14: {"bench", "demo"},
	15: {rootPackage, "benchmarks/internal/..."},
	16: {"cmd/...", "benchmarks", "benchmarks/...", "examples/...", "workshop/..."},
}

// bottom lists what every package may import, also those of its level.
var bottom = []string{"internal/fault", "internal/below", "internal/budget", "internal/spelling",
	"internal/surroundings"}

// starter names the package that starts goroutines.
const starter = "internal/fault"

// Packages of these trees import each other although they are on one level: a driver, its parts, and what plays its
// hardware.
var families = [][]string{{"device/cpu"}, {"device/cuda", "workshop/cudatest", "workshop/kerneltest"}, {"device/null"}}

// workshop has what proves, measures and releases the program, such as the stand-in of a GPU and NVIDIA's driver. Tests
// import it, and so do programs in files with the build tag standin.
const workshop = "workshop"

// driverList opens devices by name, for programs and for the root package.
const driverList = "internal/drivers"

// rootPackage is for programs in other modules. It links the drivers through driverList, so no package below it
// does.
const rootPackage = "."

// rehearsal runs plans on the driver that only counts.
const rehearsal = "rehearse"

// The drivers. driverList, rehearsal and programs link them, and no other package does.
var drivers = []string{"device/cpu", "device/cuda", "device/null"}

// programs is the level whose packages are programs.
const programs = 16

// Modules that may be imported, and by whom: by every package where no tree is named.
var modules = map[string]struct {
	trees     []string
	testsOnly bool
}{
	// It makes the binary need glibc.
	"github.com/ebitengine/purego":      {trees: []string{"device/cuda", "internal/mpi", "benchmarks"}},
	"golang.org/x/crypto/x509roots":     {trees: []string{"cmd"}}, // certificates alone
	"golang.org/x/mod":                  {trees: []string{"workshop/tools"}},
	"github.com/CycloneDX/cyclonedx-go": {trees: []string{"workshop/tools"}},
	"github.com/google/rpmpack":         {trees: []string{"workshop/tools"}},
	// needs 4 more; nfpm, which makes .deb too, 39
	"golang.org/x/sys":                 {},
	"golang.org/x/term":                {trees: []string{"internal/terminal"}},
	"golang.org/x/text":                {},
	"github.com/alecthomas/kong":       {trees: []string{"cmd"}},
	"github.com/goccy/go-yaml":         {},
	"github.com/andybalholm/brotli":    {trees: []string{"data/parquet"}}, // RFC 7932 has a dictionary of 120 KB
	"github.com/klauspost/compress":    {},
	"github.com/klauspost/cpuid":       {trees: []string{"device/cpu/isa"}}, // the CPU's maker
	"github.com/zeebo/xxh3":            {},
	"github.com/google/go-cmp":         {testsOnly: true},
	"github.com/parquet-go/parquet-go": {trees: []string{"data/parquet/oracle"}, testsOnly: true}, // needs seven more
	"pgregory.net/rapid":               {testsOnly: true},
	"go.uber.org/goleak":               {testsOnly: true},
	"example.com/library":              {trees: []string{"examples/library"}}, // the name that this tree has as a module
}

// bannedNames say nothing about what a package is.
var bannedNames = []string{"util", "common", "helper", "manager", "misc"}

// levelOf is a package's level; ok is false for one that the table lacks.
func levelOf(pkg string) (level int, ok bool) {
	longest := -1 // of the trees that have it, the innermost one counts
	for l, names := range levels {
		for _, name := range names {
			tree, isTree := strings.CutSuffix(name, "/...")
			if name == pkg {
				return l, true
			}
			if isTree && pkg != tree && within(pkg, tree) && len(tree) > longest {
				level, ok, longest = l, true, len(tree)
			}
		}
	}
	return level, ok
}

func within(pkg, tree string) bool { return pkg == tree || strings.HasPrefix(pkg, tree+"/") }

func withinAny(pkg string, trees []string) bool {
	for _, t := range trees {
		if within(pkg, t) {
			return true
		}
	}
	return false
}

// isTestSupport is true of packages such as device/devicetest, which only tests and examples import.
func isTestSupport(pkg string) bool { return strings.HasSuffix(pkg, "test") }
