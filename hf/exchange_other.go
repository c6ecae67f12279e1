//go:build !linux

package hf

func exchange(a, b string) error { return exchangeInSteps(a, b) }
