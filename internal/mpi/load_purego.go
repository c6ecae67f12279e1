//go:build linux && (amd64 || arm64) && !nogpu

package mpi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"
)

// functions has the addresses of the functions that are called, each as MPI_ and the field's name.
type functions struct {
	Init_thread, Comm_rank, Comm_size, Comm_set_errhandler, Comm_split_type, Comm_free, Allgather uintptr
	Isend, Irecv, Test, Get_count, Error_string, Finalize, Abort                                  uintptr
}

// binding is an MPI library that is loaded.
type binding struct {
	table
	functions
	version string
}

// join finds and loads the launcher's library, and joins the ranks.
func join(l Launch) (joined, error) {
	b, err := load(l)
	if err != nil {
		return joined{}, err
	}
	return b.init(l)
}

func load(l Launch) (*binding, error) {
	launcher, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", os.Getppid())) // empty if it may not be read: one place less
	list := places(l, launcher, os.Getenv, filepath.Glob, filepath.EvalSymlinks)
	var reasons []error // of libraries that are there and of no use
	for _, path := range list {
		if filepath.IsAbs(path) {
			if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && os.Getenv(libraryEnv) == "" {
				continue
			}
		}
		handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err != nil {
			absent := strings.HasPrefix(err.Error(), path+": cannot open shared object file: No such file")
			if !absent || os.Getenv(libraryEnv) != "" {
				reasons = append(reasons, err)
			}
			continue
		}
		b, err := bind(handle, l)
		if err != nil {
			reasons = append(reasons, fmt.Errorf("%s: %w", path, err))
			continue
		}
		// Plugins of older libraries expect its symbols to be visible.
		if _, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL); err != nil {
			return nil, err
		}
		return b, nil
	}
	return nil, notFound(l, names(l, os.Getenv), reasons)
}

// bind finds the functions of a library that is open, and its table.
func bind(handle uintptr, l Launch) (*binding, error) {
	symbol := func(name string) (uintptr, bool) {
		address, err := purego.Dlsym(handle, name)
		return address, err == nil
	}
	b := &binding{}
	fields := reflect.ValueOf(&b.functions).Elem()
	for i := range fields.NumField() {
		name := "MPI_" + fields.Type().Field(i).Name
		address, ok := symbol(name)
		if !ok {
			return nil, fmt.Errorf("it lacks %s, so it is no MPI library: remove it from the places where libraries "+
				"are looked for", name)
		}
		fields.Field(i).SetUint(uint64(address))
	}
	ask, ok := symbol("MPI_Get_library_version")
	if !ok {
		return nil, errors.New("it lacks MPI_Get_library_version of MPI 3: install Open MPI 4 or newer, or " +
			"MPICH 3 or newer")
	}
	var text [8192]byte // MPI_MAX_LIBRARY_VERSION_STRING is this or less
	var length, major, minor int32
	purego.SyscallN(ask, uintptr(unsafe.Pointer(&text)), uintptr(unsafe.Pointer(&length)))
	b.version = cut(text[:], length)
	if ask, ok := symbol("MPI_Abi_get_version"); ok {
		purego.SyscallN(ask, uintptr(unsafe.Pointer(&major)), uintptr(unsafe.Pointer(&minor)))
	}
	if err := fits(l.Launcher, b.version); err != nil {
		return nil, err
	}
	var err error
	b.table, err = chooseTable(b.version, major, symbol)
	return b, err
}

// call calls a function of the library. Its error has MPI's text. Variables whose addresses are arguments are on Go's
// heap, where nothing moves, and live until it returns.
//
//go:uintptrescapes
func (b *binding) call(name string, function uintptr, args ...uintptr) error {
	r, _, _ := purego.SyscallN(function, args...)
	code := int32(r)
	if code == 0 {
		return nil
	}
	var text [512]byte // MPI_MAX_ERROR_STRING is this or less
	var length int32
	purego.SyscallN(b.Error_string, uintptr(code), uintptr(unsafe.Pointer(&text)), uintptr(unsafe.Pointer(&length)))
	return fmt.Errorf("%s: %s", name, strings.Join(strings.Fields(cut(text[:], length)), " "))
}

// cut gives the first bytes of a buffer in which the library has written a text of that length.
func cut(text []byte, length int32) string {
	return string(text[:min(max(int(length), 0), len(text))])
}

// init joins the other ranks: it returns after all have come so far.
func (b *binding) init(l Launch) (joined, error) {
	j := joined{library: b, version: firstLine(b.version)}
	var provided, rank, size int32
	err := b.call("MPI_Init_thread", b.Init_thread, 0, 0, uintptr(b.serialized), uintptr(unsafe.Pointer(&provided)))
	if err != nil {
		return j, err
	}
	if provided < b.serialized {
		return j, fmt.Errorf("%s was built without threads (level %d of MPI_Init_thread): install one that has "+
			"MPI_THREAD_SERIALIZED", j.version, provided)
	}
	err = errors.Join(
		b.call("MPI_Comm_set_errhandler", b.Comm_set_errhandler, b.world, b.errorsReturn),
		b.call("MPI_Comm_rank", b.Comm_rank, b.world, uintptr(unsafe.Pointer(&rank))),
		b.call("MPI_Comm_size", b.Comm_size, b.world, uintptr(unsafe.Pointer(&size))))
	if err != nil {
		return j, err
	}
	j.rank, j.size = int(rank), int(size)
	if err := agrees(l, j); err != nil {
		return j, err
	}
	j.local, err = b.sharing(rank)
	return j, err
}

// sharing returns the ranks that share memory with this one, ascending.
func (b *binding) sharing(rank int32) ([]int, error) {
	var host uintptr // MPICH writes the lower half of it
	err := b.call("MPI_Comm_split_type", b.Comm_split_type, b.world, uintptr(b.shared), uintptr(rank), b.infoNull,
		uintptr(unsafe.Pointer(&host)))
	if err != nil {
		return nil, err
	}
	var size int32
	if err := b.call("MPI_Comm_size", b.Comm_size, host, uintptr(unsafe.Pointer(&size))); err != nil {
		return nil, err
	}
	all := make([]int32, size)
	err = b.call("MPI_Allgather", b.Allgather, uintptr(unsafe.Pointer(&rank)), 4, b.byte,
		uintptr(unsafe.Pointer(&all[0])), 4, b.byte, host)
	if err != nil {
		return nil, err
	}
	ranks := make([]int, size)
	for i, r := range all {
		ranks[i] = int(r)
	}
	return ranks, b.call("MPI_Comm_free", b.Comm_free, uintptr(unsafe.Pointer(&host)))
}

// message is a transfer of a binding. It is on Go's heap, and keeps the bytes there that the library reads or writes.
type message struct {
	request uintptr   // MPI_Request: MPICH writes the lower half of it
	status  [8]uint64 // MPI_Status has 20 to 32 bytes
	bytes   []byte
	arrives bool
}

func (b *binding) send(to, tag int, bytes []byte) (transfer, error) {
	m := &message{bytes: bytes}
	return m, b.call("MPI_Isend", b.Isend, uintptr(unsafe.Pointer(unsafe.SliceData(bytes))), uintptr(len(bytes)),
		b.byte, uintptr(to), uintptr(tag), b.world, uintptr(unsafe.Pointer(&m.request)))
}

func (b *binding) receive(from, tag int, bytes []byte) (transfer, error) {
	m := &message{bytes: bytes, arrives: true}
	return m, b.call("MPI_Irecv", b.Irecv, uintptr(unsafe.Pointer(unsafe.SliceData(bytes))), uintptr(len(bytes)),
		b.byte, uintptr(from), uintptr(tag), b.world, uintptr(unsafe.Pointer(&m.request)))
}

func (b *binding) test(t transfer) (ended bool, received int, err error) {
	m := t.(*message)
	var flag, count int32
	status := uintptr(unsafe.Pointer(&m.status))
	err = b.call("MPI_Test", b.Test, uintptr(unsafe.Pointer(&m.request)), uintptr(unsafe.Pointer(&flag)), status)
	if err != nil || flag == 0 {
		return err != nil, 0, err
	}
	if m.arrives {
		err = b.call("MPI_Get_count", b.Get_count, status, b.byte, uintptr(unsafe.Pointer(&count)))
	}
	return true, int(count), err
}

func (b *binding) leave(status int) {
	if err := b.call("MPI_Finalize", b.Finalize); err != nil {
		fmt.Fprintf(os.Stderr, "millrace: the ranks did not take leave of each other: %v\n", err)
		status = max(status, 1)
	}
	exit(status)
}

func (b *binding) abort(status int) {
	b.call("MPI_Abort", b.Abort, b.world, uintptr(status))
	exit(status)
}

// exit ends the process as a C program ends: MPICH tells its launcher in an atexit handler that this rank has ended
// well, and os.Exit calls none of these.
func exit(status int) {
	if c, err := purego.Dlsym(purego.RTLD_DEFAULT, "exit"); err == nil {
		purego.SyscallN(c, uintptr(status))
	}
	os.Exit(status)
}
