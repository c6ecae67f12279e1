package data

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/millrace/millrace/data/template"
)

// contracts caches the contracts of a Chat's templates, by template and by the variables that may change them. Each is
// found once, when the first row of its kind comes.
type contracts struct {
	mu  sync.Mutex
	all map[contractKey]*template.Contract
}

type contractKey struct {
	source, variables string
	tools             bool
}

// maxContracts bounds the contracts that are kept: rows may each have variables of their own.
const maxContracts = 64

// templateError is a fault of the chat template, and of no row.
type templateError struct{ err error }

func (e *templateError) Error() string {
	return fmt.Sprintf("chat_template: %v; correct it, or set chat_template to another", e.err)
}

func (e *templateError) Unwrap() error { return e.err }

// isOfTemplate reports whether an error is a fault of the chat template.
func isOfTemplate(err error) bool {
	var of *templateError
	return errors.As(err, &of)
}

// contract finds the contract of a template.
func (c *contracts) contract(ctx context.Context, t *template.Template, key contractKey, in template.Input) (*template.Contract, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.all[key]; ok {
		return known, nil
	}
	found, err := t.Contract(ctx, in)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, template.ErrLimit):
		return nil, err
	case err != nil:
		return nil, &templateError{err}
	}
	if len(c.all) >= maxContracts {
		clear(c.all)
	}
	c.all[key] = found
	return found, nil
}
