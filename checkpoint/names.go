package checkpoint

import (
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
)

// The names in a run's directory of checkpoints. What begins with a dot is not a checkpoint (yet, or any more).
const (
	stepPrefix = "step-"
	lockName   = ".lock"

	savingSuffix   = ".tmp" // a save that has not ended
	replacedSuffix = ".old" // a checkpoint that one of the same step takes the place of
	prunedSuffix   = ".del" // a checkpoint that is being removed
)

// OwnerName is a file that a directory may have in which a run saves outside of its output directory: it names the
// output directory. Package train writes and reads it.
const OwnerName = "owner.json"

// DirName is the name of the directory of a step's checkpoint: "step-000100".
func DirName(step int) string { return fmt.Sprintf(stepPrefix+"%06d", step) }

// stepOf reads what DirName writes.
func stepOf(name string) (step int, ok bool) {
	digits, ok := strings.CutPrefix(name, stepPrefix)
	if !ok {
		return 0, false
	}
	step, err := strconv.Atoi(digits)
	return step, err == nil && step >= 0 && step <= maxStep && DirName(step) == name
}

// IsDirName reports whether a name is that of a checkpoint's directory, or what SetAside makes of one.
func IsDirName(name string) bool {
	_, is := stepOf(name)
	_, isAside := asideStep(name)
	return is || isAside
}

// hiddenName is the name of a checkpoint's directory while it is not one. It has the id of the run, since the files in
// such a directory may not say whose they are.
func hiddenName(step int, run RunID, suffix string) string {
	return "." + DirName(step) + "." + run.Short() + suffix
}

// ownName is another hidden name, of a save that does not share it with any other one of its step.
func ownName(hidden string) string {
	return strings.TrimSuffix(hidden, savingSuffix) + "." + rand.Text() + savingSuffix
}

// hiddenStep reads what hiddenName writes for a run of an owner, and what ownName makes of that.
func hiddenStep(name string, o Owner) (step int, suffix string, ok bool) {
	for _, run := range append([]RunID{o.Run}, o.Earlier...) {
		for _, suffix := range []string{savingSuffix, replacedSuffix, prunedSuffix} {
			base, isHidden := strings.CutPrefix(name, ".")
			base, has := strings.CutSuffix(base, suffix)
			base, own, ofRun := strings.Cut(base, "."+run.Short())
			isWhole := own == "" || suffix == savingSuffix && own[0] == '.'
			if step, ok := stepOf(base); isHidden && has && ofRun && isWhole && ok {
				return step, suffix, true
			}
		}
	}
	return 0, "", false
}

// asideStep reads the step of a name that SetAside gives: "step-000020.damaged", "step-000020.damaged-2".
func asideStep(name string) (step int, ok bool) {
	base, why, ok := strings.Cut(name, ".")
	if !ok || why == "" {
		return 0, false
	}
	return stepOf(base)
}

// imageName is the file for the pieces of an extent that come from host memory, each at its offset in the extent.
func (id ID) imageName() string {
	return id.Part + "." + strings.ReplaceAll(id.Kind.String(), " ", "-")
}

// pieceName is the name of a file that holds one piece.
func (id ID) pieceName(piece int) string { return fmt.Sprintf("%s.%05d", id.imageName(), piece) }

// isPlainName is true of names that are a file's on every system, and never lead out of a directory.
func isPlainName(name string) bool {
	if name == "" || len(name) > 200 || name[0] == '.' {
		return false
	}
	for _, c := range []byte(name) {
		isLetter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !isLetter && !('0' <= c && c <= '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// quote is %q, cut short: names from damaged files may be megabytes long.
func quote(s string) string {
	const limit = 100
	if len(s) > limit {
		return fmt.Sprintf("%q... (%d bytes)", s[:limit], len(s))
	}
	return fmt.Sprintf("%q", s)
}
