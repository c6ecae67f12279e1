package cores

import "golang.org/x/sys/unix"

// Pin binds the calling thread to a core. The goroutine has to be locked to its thread, and to end locked, so that the thread ends
// with it.
func Pin(c Core) error {
	var set unix.CPUSet
	for _, p := range c.Processors {
		set.Set(p)
	}
	return unix.SchedSetaffinity(0, &set)
}

// allowedProcessors are those that the calling thread may run on.
func allowedProcessors() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, err
	}
	var list []int
	for p := range len(set) * 64 {
		if set.IsSet(p) {
			list = append(list, p)
		}
	}
	return list, nil
}
