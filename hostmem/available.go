package hostmem

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
)

// ErrUnknown is Available's error.
var ErrUnknown = errors.New("the memory available is not known: neither /proc/meminfo nor a cgroup tells it")

// Available returns the bytes that this process may still take without swapping or being killed: the least of what the
// machine has left and of what each cgroup above the process (version 1 or 2) has left. Source names the one that
// limits, for people. The error is not nil where the system does not tell (other systems than Linux). It is ErrUnknown.
func Available() (bytes int64, source string, err error) { return available(os.DirFS("/")) }

func available(root fs.FS) (int64, string, error) {
	least, source := int64(math.MaxInt64), ""
	take := func(n int64, from string) {
		if n < least {
			least, source = max(n, 0), from
		}
	}
	if n, err := field(root, "proc/meminfo", "MemAvailable:"); err == nil {
		take(n<<10, machineSource)
	}
	cgroups(root, func(limit, used int64, from string) { take(limit-used, from) })
	if source == "" {
		return 0, "", ErrUnknown
	}
	return least, source, nil
}

// Total is the memory in bytes of the machine or, if that is less, of the smallest limit of a cgroup above this
// process. Unlike Available it does not depend on what is used now. The error is ErrUnknown where the system does not
// tell.
func Total() (int64, error) { return total(os.DirFS("/")) }

func total(root fs.FS) (int64, error) {
	least := int64(math.MaxInt64)
	if n, err := field(root, "proc/meminfo", "MemTotal:"); err == nil {
		least = n << 10
	}
	cgroups(root, func(limit, _ int64, _ string) { least = min(least, max(limit, 0)) })
	if least == math.MaxInt64 {
		return 0, ErrUnknown
	}
	return least, nil
}

// cgroups hands to take the limits of each cgroup above this process, and what of the limit is used.
func cgroups(root fs.FS, take func(limit, used int64, source string)) {
	self, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range strings.Lines(string(self)) {
		// "hierarchy:controllers:path", where version 2 has no controllers.
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(part) != 3:
		case part[1] == "":
			for _, mount := range []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"} {
				climb(root, mount, part[2], version2, take)
			}
		case strings.Contains(","+part[1]+",", ",memory,"):
			climb(root, "sys/fs/cgroup/memory", part[2], version1, take)
		}
	}
}

// machineSource names the source of the machine's available memory; cgroups may limit it further.
const machineSource = "MemAvailable in /proc/meminfo"

// controller names the files of the memory controller in a cgroup version.
type controller struct {
	limits                    []string
	usage, stat, inactiveFile string
}

var (
	version1 = controller{[]string{"memory.limit_in_bytes"}, "memory.usage_in_bytes", "memory.stat", "total_inactive_file"}
	version2 = controller{[]string{"memory.max", "memory.high"}, "memory.current", "memory.stat", "inactive_file"}
)

// noLimit is below what version 1 says of a group without a limit: the largest number of whole pages, whose size
// depends on the machine.
const noLimit = 1 << 62

// climb looks at a cgroup and all above it. Inside a container the path may be the host's and not exist below the
// mount; climbing then ends at the mount, which is the container's own group.
func climb(root fs.FS, mount, group string, c controller, take func(limit, used int64, source string)) {
	for dir := path.Join(mount, path.Clean("/"+group)); ; dir = path.Dir(dir) {
		for _, name := range c.limits {
			file := path.Join(dir, name)
			limit, err := number(root, file)
			if err != nil || limit >= noLimit {
				continue // "max", or no such group, or no limit: then the files of what is used need not be read
			}
			used, err := number(root, path.Join(dir, c.usage))
			if err != nil {
				continue
			}
			// Inactive page cache is given back on demand.
			cache, _ := field(root, path.Join(dir, c.stat), c.inactiveFile)
			take(limit, max(used-cache, 0), "limit in /"+file)
		}
		if dir == mount {
			return
		}
	}
}

// PeakRSS is the most memory, in bytes, that was ever resident in this process (VmHWM).
func PeakRSS() (int64, error) { return status("VmHWM:") }

// RSS is the memory, in bytes, that is resident in this process now (VmRSS).
func RSS() (int64, error) { return status("VmRSS:") }

func status(key string) (int64, error) {
	kib, err := field(os.DirFS("/"), "proc/self/status", key)
	return kib << 10, err
}

// number reads a file that holds one number.
func number(root fs.FS, name string) (int64, error) {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// field reads the number that follows a key in a file of "key number" lines.
func field(root fs.FS, name, key string) (int64, error) {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == key {
			return strconv.ParseInt(f[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("/%s has no line %q", name, key)
}
