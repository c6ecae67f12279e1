package drive

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// numberOf is the number of the block device with a directory, as sysfs writes it.
func numberOf(dir string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d:%d", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev))), nil
}
