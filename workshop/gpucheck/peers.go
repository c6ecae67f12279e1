package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// packName is the file that benchmarks/peers/pack.sh makes: what peers need and a machine without a network may not
// have.
const packName = "peers.tar.xz"

// tinyPeers are the rows of the table that a rehearsal runs: ours, one that computes without a GPU and one that says
// that it needs one.
var tinyPeers = []string{"*7b*32768*stream auto", "*7b*32768* resident", "*7b*131072*megatrain"}

// peers measures other programs and ours, by the table of benchmarks/peers/one_call.json. Rows that no longer fit in
// what is left of this row's time are left out.
func peers(c *check) (string, error) {
	out := filepath.Join(c.out, "peers.json")
	args := append(c.peersArgs(), "--out", out)
	if c.tiny {
		args = append(args, "--model", filepath.Join(c.work, "model"), "--sequence-len", "32", "--tokens", "64",
			"--steps", "1")
	}
	if pack := peersPack(); pack != "" {
		args = append(args, "--pack", pack)
	}
	_, err := c.script("benchmarks/peers/compare.py", args...)
	var none leftOut
	if errors.As(err, &none) {
		return "", err
	}
	note, noteErr := peersNote(out)
	return note, errors.Join(err, noteErr)
}

// peersArgs makes the arguments that say which rows run, and on what machine.
func (c *check) peersArgs() []string {
	args := []string{"--plan", filepath.Join(c.dir, "benchmarks/peers/one_call.json"), "--device", c.device(),
		"--millrace", filepath.Join(c.dir, "millrace"), "--only"}
	if c.tiny {
		return append(args, tinyPeers...)
	}
	args = append(args, strings.Fields(c.peers)...)
	if c.hostBytes > 64<<30 {
		args = append(args, "--memory-host", strconv.FormatInt(int64(0.93*float64(c.hostBytes))>>30, 10))
	}
	return args
}

// peersPack finds the packages of peers: in the folder of this program, or next to that.
func peersPack() string {
	here, err := os.Executable()
	if err != nil {
		return ""
	}
	dir := filepath.Dir(here)
	for _, path := range []string{filepath.Join(dir, packName), filepath.Join(filepath.Dir(dir), packName)} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return ""
}

// peersNote sums up what compare.py measured: figures first, then failures, then how many rows were left out.
func peersNote(path string) (string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var all map[string][]struct {
		StepSec     float64 `json:"step_sec"`
		ModelTFLOPS float64 `json:"model_tflops"`
		Skipped     string  `json:"skipped"`
		Failed      string  `json:"failed"`
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return "", fmt.Errorf("peers.json: %w", err)
	}
	var measured, others []string
	left := 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if len(all[name]) == 0 {
			return "", fmt.Errorf("peers.json: %q has no result", name)
		}
		switch r := all[name][0]; {
		case r.StepSec > 0:
			measured = append(measured, fmt.Sprintf("%s %.3f s, %.0f model TFLOP/s", name, r.StepSec, r.ModelTFLOPS))
		case strings.HasPrefix(r.Skipped, "left out"):
			left++
		default:
			others = append(others, name+": "+oneLine(r.Skipped+r.Failed))
		}
	}
	notes := slices.Concat(measured, others)
	if left > 0 {
		notes = append(notes, fmt.Sprintf("%d rows left out", left))
	}
	return strings.Join(notes, "; "), nil
}
