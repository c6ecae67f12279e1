package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"strings"
	"syscall"

	"github.com/millrace/millrace/internal/terminal"
)

// oneLine is an error as a line for people: without the line breaks of joined errors, without words of Go and of its
// libraries, without characters that a terminal acts on, and with a way to fix it where the operating system gave the
// cause.
func oneLine(err error) string {
	text := plainWords(err)
	if strings.HasSuffix(text, endsEarly) {
		text += "; it was cut: copy or download it again"
	}
	var parts []string
	for line := range strings.Lines(terminal.Text(text)) {
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			parts = append(parts, line)
		}
	}
	return shortened(strings.Join(parts, "; "))
}

const endsEarly = "it ends too early"

// plainWords returns an error's text, with Go's own wording of causes replaced by words for people. Where the text ends
// with an error of the operating system, a way out is added; a text that continues after that error says itself what to
// do.
func plainWords(err error) string {
	text := err.Error()
	replace := func(inner error, words string) {
		cause := inner.Error()
		if before, ends := strings.CutSuffix(text, cause); ends {
			if errno := syscall.Errno(0); errors.As(inner, &errno) && ways[errno] != "" {
				words += "; " + ways[errno]
			}
			text = before + words
			return
		}
		text = strings.ReplaceAll(text, cause, words)
	}
	causes(err, func(inner error) {
		switch e := inner.(type) {
		case *fs.PathError:
			replace(e, fileWords(e.Op, e.Path, e.Err))
		case *os.LinkError:
			replace(e, fileWords(e.Op, e.New, e.Err))
		case *json.UnmarshalTypeError:
			replace(e, jsonWords(e))
		case *json.SyntaxError:
			replace(e, fmt.Sprintf("at byte %d it is not JSON that can be read", e.Offset))
		case syscall.Errno:
			replace(e, e.Error())
		}
	})
	for _, words := range []string{": unexpected EOF", ": EOF", ": unexpected end of JSON input"} {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || strings.HasSuffix(text, words) {
			text = strings.ReplaceAll(text, words, ": "+endsEarly)
		}
	}
	text = strings.ReplaceAll(text, "json: unknown field ", "there must be no key ")
	return text
}

// causes calls found with an error and all that it wraps.
func causes(err error, found func(error)) {
	if err == nil {
		return
	}
	found(err)
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		causes(e.Unwrap(), found)
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			causes(inner, found)
		}
	}
}

func fileWords(op, path string, err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "there is no file or directory " + path
	}
	did, known := map[string]string{"open": "opened", "openat": "opened", "read": "read", "pread": "read", "write": "written", "pwrite": "written",
		"mkdir": "made", "rename": "made", "link": "made", "symlink": "made", "remove": "removed", "unlink": "removed", "unlinkat": "removed",
		"sync": "written", "fsync": "written", "close": "written", "truncate": "written", "preallocate": "given its space", "readdirent": "listed"}[op]
	if !known {
		return path + ": " + err.Error()
	}
	return path + " cannot be " + did + ": " + err.Error()
}

func jsonWords(e *json.UnmarshalTypeError) string {
	want := "an object"
	switch e.Type.Kind() {
	case reflect.String:
		want = "a text"
	case reflect.Bool:
		want = "true or false"
	case reflect.Slice, reflect.Array:
		want = "a list"
	case reflect.Float32, reflect.Float64:
		want = "a number"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		want = fmt.Sprintf("a whole number of at most %d bits", e.Type.Bits())
	}
	where := e.Field
	if where == "" {
		where = "it"
	}
	return fmt.Sprintf("%s has %s where %s belongs", where, e.Value, want)
}

// ways name a remedy for causes that the operating system gives.
var ways = map[syscall.Errno]string{
	syscall.EACCES:       "change its permissions, or name another place",
	syscall.EPERM:        "change its permissions, or name another place",
	syscall.EROFS:        "name a place that can be written",
	syscall.ENOSPC:       "free space there, or name another place",
	syscall.EDQUOT:       "free space there, or name another place",
	syscall.EFBIG:        "raise the limit of file sizes (ulimit -f), or name another place",
	syscall.ENOENT:       "check the name",
	syscall.EISDIR:       "name a file",
	syscall.ENOTDIR:      "name another place: a part of the path is a file",
	syscall.ENAMETOOLONG: "shorten it",
	syscall.ELOOP:        "name the file that the links mean",
	syscall.EMFILE:       "raise the limit of open files (ulimit -n)",
	syscall.ENFILE:       "raise the system's limit of open files",
	syscall.ENOMEM:       "close other programs, or lower memory.host",
	syscall.EIO:          "the drive fails: the system's log says more",
	syscall.ENXIO:        "name a file",
	syscall.ENODEV:       "name a file",
}

const (
	mostWord = 300  // bytes of a word in a message: a value can have megabytes
	mostLine = 8000 // and of all of it
)

// shortened is a line whose words, and which itself, have no more than a reader wants. The end is kept: it says what
// to do.
func shortened(line string) string {
	if len(line) > mostWord {
		words := strings.Split(line, " ")
		for i, w := range words {
			words[i] = withoutMiddle(w, mostWord)
		}
		line = withoutMiddle(strings.Join(words, " "), mostLine)
	}
	return line
}

func withoutMiddle(s string, most int) string {
	if len(s) <= most {
		return s
	}
	half := most / 2
	return strings.ToValidUTF8(s[:half], "") + " ... " + strings.ToValidUTF8(s[len(s)-half:], "")
}
