//go:build !linux

package vfs

// Exchange swaps two names in three steps.
func (OS) Exchange(a, b string) error { return exchangeInSteps(a, b) }
