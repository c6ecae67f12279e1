//go:build !race

package ptx

// reusesBlocks: a launch takes the registers that another has left.
const reusesBlocks = true
