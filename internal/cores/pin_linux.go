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

// Allowed returns the processors that a process may run on, by its number; 0 is the calling thread.
func Allowed(process int) ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(process, &set); err != nil {
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
