package data

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/millrace/millrace/data/parquet"
)

// parquetLimits bounds the memory and time that a Parquet file of a size may cost. Writers make pages of about a
// megabyte. Zstandard alone packs equal rows a thousand times, and more than that is left for columns of few values.
func (s rowReader) parquetLimits(size int64) parquet.Limits {
	held := s.limits.heldBytes()
	return parquet.Limits{RowBytes: s.limits.rowBytes(maxRowBytes), PageBytes: min(maxTextBytes, held), HeldBytes: held,
		TotalBytes: tableBytes(size) + s.spare.left}
}

// tableBytes returns the bytes that a Parquet file of a size may unpack to in proportion.
func tableBytes(size int64) int64 { return tableTextPerByte * min(size, 1<<50) }

// readParquet calls yield for each row of a Parquet file, as the JSON object of the columns that the type looks at, until
// it returns false.
func (s rowReader) readParquet(ctx context.Context, name string, f *os.File, yield func(row) bool) error {
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return s.readTable(ctx, name, f, info.Size(), s.parquetLimits(info.Size()), yield)
}

func (s rowReader) readTable(ctx context.Context, name string, in io.ReaderAt, size int64,
	limits parquet.Limits, yield func(row) bool) error {
	file, err := parquet.Open(in, size, limits)
	if err != nil {
		return fmt.Errorf("%s: %w; if it should be good, download it again", name, err)
	}
	wanted, required := s.columns()
	has := file.Columns()
	for _, column := range wanted[:required] {
		if !slices.Contains(has, column) {
			return fmt.Errorf("%s: there is no column %q: the file has %s", name, column, someOf(has))
		}
	}
	for _, column := range has {
		if !slices.Contains(wanted, column) && s.looksAt(column) {
			wanted = append(wanted, column)
		}
	}
	defer func() { s.spare.left -= max(0, file.Spent()-tableBytes(size)) }()
	number := 0
	err = file.Rows(ctx, wanted, isLabelColumn, func(object []byte, err error) bool {
		number++
		r := row{file: name, line: number, table: true}
		switch {
		case errors.Is(err, parquet.ErrRowTooLarge):
			r.err = r.errorf("%w: at most %d MiB are read", err, limits.RowBytes>>20)
		case err != nil:
			r.err = r.errorf("%w", err)
		default:
			r.data = slices.Clone(object)
		}
		return yield(r)
	})
	if err != nil {
		return fmt.Errorf("%s: row %d: %w", name, number+1, err)
	}
	return nil
}

// isLabelColumn is true of a key of messages that templates never write, by its path in a row: "messages.timestamp".
func isLabelColumn(field string) bool {
	_, below, ok := strings.Cut(field, ".")
	key, _, _ := strings.Cut(below, ".")
	return ok && isLabel(key)
}
