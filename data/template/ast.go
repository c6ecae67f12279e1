package template

// An expr evaluates to a value, a stmt writes to the output. Both hold offsets into the source for messages.
type (
	expr interface{ eval(*state) Value }
	stmt interface{ exec(*state) flow }
)

// flow says how a statement ended.
type flow uint8

const (
	flowNext flow = iota
	flowBreak
	flowContinue
)

type block []stmt

// Expressions.
type (
	constExpr struct{ v Value }
	nameExpr  struct {
		id  int32
		pos int
	}
	condExpr struct {
		test, then expr
		otherwise  expr // nil: undefined
		pos        int
	}
	orExpr      struct{ a, b expr }
	andExpr     struct{ a, b expr }
	notExpr     struct{ a expr }
	compareExpr struct {
		first expr
		ops   []compareOp
		pos   int
	}
	compareOp struct {
		op string
		to expr
	}
	arithExpr struct {
		op   string
		a, b expr
		pos  int
	}
	concatExpr struct{ parts []expr }
	signExpr   struct { // -a
		a   expr
		pos int
	}
	attrExpr struct {
		of   expr
		name string
		pos  int
	}
	itemExpr struct {
		of, key expr
		pos     int
	}
	sliceExpr struct { // only within itemExpr; any part may be nil
		from, to, step expr
	}
	callExpr struct {
		fn   expr
		args callArgs
		pos  int
	}
	filterExpr struct {
		in   expr // nil: what a filter block captured
		name string
		fn   filterFunc // nil: there is no filter of the name, which matters once it is reached
		args callArgs
		pos  int
	}
	testExpr struct {
		in   expr
		name string
		fn   testFunc
		args callArgs
		pos  int
	}
	listExpr  struct{ items []expr }
	tupleExpr struct{ items []expr }
	dictExpr  struct {
		keys, vals []expr
		pos        int
	}
	callArgs struct {
		pos    []expr
		names  []string
		named  []expr
		spread expr // *args
	}
)

// Targets of an assignment.
type (
	target     interface{ assign(*state, Value) }
	nameTarget struct{ id int32 }
	attrTarget struct { // of a namespace
		id   int32
		name string
		pos  int
	}
	tupleTarget struct {
		items []target
		pos   int
	}
)

// Statements.
type (
	textStmt  struct{ text string }
	printStmt struct{ value expr }
	ifStmt    struct {
		tests     []expr
		bodies    []block
		otherwise block
	}
	forStmt struct {
		target    target
		in        expr
		test      expr // nil: all items
		body      block
		otherwise block
		pos       int
	}
	setStmt struct {
		target target
		value  expr
	}
	captureStmt struct { // a set block
		target target
		body   block
	}
	macroStmt struct {
		id  int32
		def *macroDef
	}
	callStmt struct {
		call *callExpr
		def  *macroDef
	}
	filterStmt struct {
		filters expr // a chain of filterExpr whose innermost takes the text
		body    block
	}
	generationStmt struct{ body block }
	leaveStmt      struct{ how flow }
)

// macroDef is the text of a macro, or of what {% call %} hands over as caller.
type macroDef struct {
	name       string
	params     []string
	ids        []int32
	defaults   []expr // of the last parameters
	body       block
	usesCaller bool // the body mentions caller, so a call may pass it
}
