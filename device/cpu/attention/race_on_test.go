//go:build race

package attention

const raceEnabled = true
