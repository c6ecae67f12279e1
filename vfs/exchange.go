package vfs

import "os"

// exchangeInSteps swaps two directories. A crash between the steps leaves nothing at b, but both whole directories next
// to it.
func exchangeInSteps(a, b string) error {
	old := a + ".old"
	if err := os.Rename(b, old); err != nil {
		return err
	}
	if err := os.Rename(a, b); err != nil {
		if back := os.Rename(old, b); back != nil {
			return back
		}
		return err
	}
	return os.Rename(old, a)
}
