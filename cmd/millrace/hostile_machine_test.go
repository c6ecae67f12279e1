package main

import "testing"

func hostileMachine(t *testing.T) []hostile { return nil }
