//go:build race

package ptx

// reusesBlocks: handing registers from one launch to the next would order the two in the race detector's eyes, and
// hide that nothing else does.
const reusesBlocks = false
