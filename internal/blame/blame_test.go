package blame

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/parquet"
	"github.com/millrace/millrace/data/template"
	"github.com/millrace/millrace/hf/hub"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/budget"
	"github.com/millrace/millrace/internal/mpi"
	"github.com/millrace/millrace/report"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/vfs"
)

// Errors of the machine or the program are never the request's fault, whatever operation finds them. Errors of names in
// the request are.
func TestRequest(t *testing.T) {
	for errno, of := range map[syscall.Errno]string{
		syscall.ENOSPC: "machine", syscall.EDQUOT: "machine", syscall.EIO: "machine", syscall.EROFS: "machine", syscall.ENOMEM: "machine",
		syscall.EMFILE: "machine", syscall.ESTALE: "machine",
		syscall.ENOENT: "request", syscall.EACCES: "request", syscall.EISDIR: "request", syscall.ENOTDIR: "request", syscall.ENAMETOOLONG: "request",
	} {
		err := BadRequest(fmt.Errorf("output_dir: %w", &fs.PathError{Op: "write", Path: "run.yaml", Err: errno}))
		if errors.Is(err, ErrRequest) != (of == "request") {
			t.Errorf("%v is one of the %s", err, of)
		}
		if err := errors.Join(errors.New("first"), err); errors.Is(err, ErrRequest) != (of == "request") {
			t.Errorf("%v is one of the %s", err, of)
		}
	}
	func() {
		defer func() {
			if err := BadRequest(fmt.Errorf("a.jsonl:3: %w", recover().(error))); errors.Is(err, ErrRequest) {
				t.Errorf("%v is one of the request", err)
			}
		}()
		var table []int
		_ = table[len(table)]
	}()
	if BadRequest(nil) != nil {
		t.Error("nothing is an error")
	}
	for err, of := range map[error]string{
		context.Canceled: "user", context.DeadlineExceeded: "user",
		hostmem.ErrUnknown: "machine", store.ErrChecksum: "machine",
		&checkpoint.DamageError{}: "machine",
	} {
		if err := BadRequest(fmt.Errorf("resume: %w", err)); errors.Is(err, ErrRequest) {
			t.Errorf("%v is one of the %s", err, of)
		}
	}
	if err := BadRequest(fmt.Errorf("resume: %w", NotRequest(errors.New("odd")))); errors.Is(err, ErrRequest) || err.Error() != "resume: odd" {
		t.Errorf("%v is not a bad request", err)
	}
	if NotRequest(nil) != nil {
		t.Error("nothing is an error")
	}
	if err := BadName(&checkpoint.DamageError{}); !errors.Is(err, ErrRequest) {
		t.Error("a damaged checkpoint that the user has named is not a bad request")
	}
}

// An error before a verb begins its work is a bad request; a later error is not.
func TestAsking(t *testing.T) {
	for _, isOver := range []bool{false, true} {
		verb := func() (err error) {
			ask := Asking{isOver}
			defer ask.Judge(t.Context(), &err)
			return errors.New("it fails")
		}
		if err := verb(); errors.Is(err, ErrRequest) == isOver || err.Error() != "it fails" {
			t.Errorf("isOver %v: %v", isOver, err)
		}
	}
}

// A start whose context has ended is interrupted, whatever else it met.
func TestOfStart(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range []error{errors.New("odd"), BadRequest(errors.New("odd")), syscall.ENOSPC} {
		if err := OfStart(ended, err); !errors.Is(err, context.Canceled) || errors.Is(err, ErrRequest) {
			t.Errorf("%v is not an interruption", err)
		}
	}
	if OfStart(ended, nil) != nil || !errors.Is(OfStart(t.Context(), errors.New("odd")), ErrRequest) {
		t.Error("a context that has not ended, or a start without an error, is interrupted")
	}
}

// sides has each exported error of the packages below this one. An error is the request's where the same request fails
// again: a value of it is then one that BadRequest marks. Of the others the first word says whose it is.
var sides = map[string]struct {
	side string // request, machine, or caught: it does not come to a verb's end
	err  error  // one of them; nil where no package but its own can make one
}{
	"checkpoint.DamageError":        {"machine", &checkpoint.DamageError{}},
	"data.ErrNoTemplate":            {"request", data.ErrNoTemplate},
	"data.ErrRendersNothing":        {"request", data.ErrRendersNothing},
	"data/parquet.ErrRowTooLarge":   {"request", parquet.ErrRowTooLarge},
	"data/template.ErrLimit":        {"request", template.ErrLimit},
	"data/template.Error":           {"request", &template.Error{}},
	"device/cuda/driver.ErrMissing": {"request", nil}, // it is asked for a GPU
	"device/cuda/driver.Error":      {"machine", nil}, // as machineSays; drivers are linked by programs alone
	"hf/hub.ErrOffline":             {"request", hub.ErrOffline},
	"hostmem.ErrUnknown":            {"machine", hostmem.ErrUnknown},
	"internal/budget.ErrTooMuch":    {"request", budget.ErrTooMuch},
	"internal/mpi.Error":            {"machine", &mpi.Error{}},
	"report.NoStepError":            {"request", &report.NoStepError{}},
	"store.ErrChecksum":             {"machine", store.ErrChecksum},
	"stream.ErrNotFinite":           {"caught", nil}, // by train, in a step
	"trace.RecordError":             {"request", &trace.RecordError{}},
	"vfs.ErrLocked":                 {"request", vfs.ErrLocked},
	"vfs.NotOwnError":               {"request", &vfs.NotOwnError{}},
}

// machineSays is an error that says itself that it is the machine's.
type machineSays struct{ error }

func (machineSays) OfMachine() bool { return true }

// Each exported error of a package below this one has a side.
func TestEachErrorHasASide(t *testing.T) {
	root := filepath.Join("..", "..")
	above := []string{"bench", "benchmarks", "cmd", "demo", "examples", "train", "internal/archtest", "internal/blame",
		"workshop"}
	found := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if d.IsDir() {
			base := d.Name()
			if base == "testdata" || strings.HasPrefix(base, ".") && base != ".." || slices.Contains(above, filepath.ToSlash(name)) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || !strings.Contains(name, string(filepath.Separator)) {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, name := range exportedErrors(file) {
			found[filepath.ToSlash(filepath.Dir(path)[len(root)+1:])+"."+name] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range found {
		if _, ok := sides[name]; !ok {
			t.Errorf("%s is an error without a side: add it to sides, and to BadName if it is not the request's", name)
		}
	}
	for name, of := range sides {
		if !found[name] {
			t.Errorf("there is no error %s", name)
		}
		if of.err != nil && errors.Is(BadRequest(fmt.Errorf("a start: %w", of.err)), ErrRequest) != (of.side == "request") {
			t.Errorf("%s is one of the %s, and BadRequest says otherwise", name, of.side)
		}
	}
	if errors.Is(BadRequest(fmt.Errorf("a start: %w", machineSays{errors.New("a GPU is lost")})), ErrRequest) {
		t.Error("an error that says that it is the machine's is one of the request")
	}
}

// exportedErrors are the exported types of a file that are errors, by a method or by an error that they embed, and its
// exported variables that are named as errors.
func exportedErrors(file *ast.File) (names []string) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil || d.Name.Name != "Error" {
				continue
			}
			of := d.Recv.List[0].Type
			if star, ok := of.(*ast.StarExpr); ok {
				of = star.X
			}
			if name, ok := of.(*ast.Ident); ok && name.IsExported() {
				names = append(names, name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.ValueSpec:
					for _, name := range s.Names {
						if d.Tok == token.VAR && strings.HasPrefix(name.Name, "Err") {
							names = append(names, name.Name)
						}
					}
				case *ast.TypeSpec:
					if of, ok := s.Type.(*ast.StructType); ok && s.Name.IsExported() && embedsError(of) {
						names = append(names, s.Name.Name)
					}
				}
			}
		}
	}
	return names
}

func embedsError(of *ast.StructType) bool {
	return slices.ContainsFunc(of.Fields.List, func(f *ast.Field) bool {
		name, ok := f.Type.(*ast.Ident)
		return ok && len(f.Names) == 0 && name.Name == "error"
	})
}
