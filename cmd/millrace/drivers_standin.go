//go:build standin

package main

import "github.com/millrace/millrace/workshop/cudatest/standin"

// loadDriver gives the stand-in of a driver: a program that is built with the tag standin rehearses what a GPU is to
// do, and is of no other use.
var loadDriver = standin.Load
