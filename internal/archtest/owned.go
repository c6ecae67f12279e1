package archtest

import (
	"go/ast"
	"go/token"
	"path"
	"slices"
)

// owned are names that only some files of a package may select. They keep a decision in one file: a second file that
// looks at places would have to be found when a new kind of place comes.
var owned = []struct {
	pkg   string
	names []string
	files []string
	why   string
}{
	{"stream", []string{"Placement", "InPlace", "Host", "Device", "Disk"}, []string{"operands.go"},
		"operands.go alone looks at places"},
	{"stream", []string{"Bound", "Tied", "Group", "GroupParts", "Embed", "Block", "Norm", "HeadTile", "Kind"}, nil,
		"the engine knows operands and visits, and no kind of layer or part"},
	{"plan", []string{"Where"}, []string{"place.go", "table.go", "move.go", "routes.go", "search.go", "tiers.go"},
		"table.go answers what follows from places, and the search alone changes them"},
}

// ofPlan lists all that stream selects of a plan: the schedule, memory and numerics. A decision belongs into the
// schedule, and a place into its rows.
var ofPlan = []string{
	"ScheduleOf", "ModeOf", "Describe", "Crew", "Workers", "UpdatesInBackward",
	"ComputesTwice", "BlocksTwice", "GradWaits", "SummedOnHost",
	"PeerCopies", // what to do
	"Cells", "Range", "StateIn", "KeptIn", "CacheIn", "CacheTable", "Extents", "InputExtents", "OnDisk",
	"EngineHost", // where
	"RankBytes", "Pinned", "ReachesHost", "LossAt", "DrawsAt", "LoadsAt", "SquaresAt", "TallyAt", "TokenLossesAt",
	"HeadBuffer", "InputPieces", "PieceElems", "AheadRows", "SumBytes", "TiedSumStride", "TouchedBytesPerElem", // how much
	"Numerics", "Whole", "Outputs", "Model", "Head", "Cluster", "Ranks", "LongestDocument", "AttentionShapes",
	"MicrosDown", "NumberDown", "DiskRequests",
}

// allowed are selections of owned names that mean something else: fields of other types.
var allowed = map[string][]string{
	"stream": {"e.Device", "e.Host", "r.Device", "r.Host", "op.Host", "Cluster.Host", "Plan.Host",
		"device.Device", "store.Disk", "fault.Group", "d.Group", "id.Kind", "spec.Kind", "store.Kind"},
}

// refuseOwned reports owned names outside of their files.
func (c *checker) refuseOwned(file string, f *ast.File, files *token.FileSet) {
	if path.Dir(file) == "stream" {
		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if ok && lastName(sel.X) == "Plan" && !slices.Contains(ofPlan, sel.Sel.Name) {
				c.report("%s: Plan.%s is not for stream: a decision belongs into the schedule, and a place into its rows",
					files.Position(sel.Pos()), sel.Sel.Name)
			}
			return true
		})
	}
	for _, o := range owned {
		if path.Dir(file) != o.pkg || slices.Contains(o.files, path.Base(file)) {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if ok && slices.Contains(o.names, sel.Sel.Name) && !slices.Contains(allowed[o.pkg],
				lastName(sel.X)+"."+sel.Sel.Name) {
				c.report("%s: %s is not for this file: %s", files.Position(sel.Pos()), sel.Sel.Name, o.why)
			}
			return true
		})
	}
}

// lastName is the identifier that a selection is made from: b of a.b.c.
func lastName(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	}
	return ""
}
