package data

import (
	"errors"
	"runtime"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/hostmem"
)

// TestOrderIsFrozen holds the order of the data to what it has always been: a change of it changes the bits of every
// run, and what a checkpoint's cursor means.
func TestOrderIsFrozen(t *testing.T) {
	sources := func(weights ...float64) *Dataset {
		var all []Example
		for i := range 1500 {
			e := count(1 + i*7919%90)
			for t := range e.InputIDs {
				e.InputIDs[t] = int32(i*100 + t + 1)
				e.Labels[t] = e.InputIDs[t]
			}
			all = append(all, e)
		}
		d := &Dataset{accounts: hostmem.New()}
		for i, w := range weights {
			part := all[i*len(all)/len(weights) : (i+1)*len(all)/len(weights)]
			b := newBuilder()
			for _, e := range part {
				if err := b.append(e); err != nil {
					t.Fatal(err)
				}
			}
			p, err := b.finishInMemory(d.accounts)
			if err != nil {
				t.Fatal(err)
			}
			d.add(p, Text, w)
		}
		if err := d.seal(); err != nil {
			t.Fatal(err)
		}
		return d
	}
	hash := func(d *Dataset, long LongDocuments, sequenceLen int) uint64 {
		l, err := NewLoader(d, LoaderOptions{SequenceLen: sequenceLen, BatchTokens: 4 * sequenceLen, Seed: 11, LongDocuments: long})
		if err != nil {
			t.Fatal(err)
		}
		h := xxh3.New()
		for l.Cursor().Epoch < 3 {
			batches, err := next(l, 2)
			if err != nil {
				t.Fatal(err)
			}
			for _, b := range batches {
				for _, a := range [][]int32{b.IDs, b.Targets, b.DocStart} {
					for _, v := range a {
						h.Write([]byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)})
					}
				}
			}
		}
		return h.Sum64()
	}
	training, held, err := sources(1).Split(0.2, 3)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		d    *Dataset
		long LongDocuments
		len  int
		want uint64
	}{
		"whole":     {sources(1), SplitLong, 128, 0x23c1a155a457cd45},
		"split":     {sources(1), SplitLong, 40, 0x74c2a963b3455c3c},
		"dropped":   {sources(1), DropLong, 40, 0x96958c5b0c93242f},
		"truncated": {sources(1), TruncateLong, 40, 0xfff625ddbcddc39a},
		"two":       {sources(1, 1), SplitLong, 64, 0x3a0e652faa12f2dc},
		"weighted":  {sources(0.3, 2.5, 1), SplitLong, 40, 0x6755efd45ef4eece},
		"training":  {training, SplitLong, 40, 0x669b884c3679920d},
		"held":      {held, SplitLong, 128, 0x94d8a7d38370ee47},
	} {
		if got := hash(c.d, c.long, c.len); got != c.want {
			t.Errorf("%s: %#x, want %#x", name, got, c.want)
		}
	}
}

// TestEpochsTakeNoMemory packs epoch after epoch of many short documents. All of that happens in memory that was
// reserved when the loader was made: what is taken at the end of an epoch, in the middle of a run, is in no plan.
func TestEpochsTakeNoMemory(t *testing.T) {
	const documents = 100_000
	accounts := hostmem.New()
	d := &Dataset{accounts: accounts}
	for _, weight := range []float64{1, 1.5} {
		b := newBuilder()
		for i := range documents / 2 {
			if err := b.append(count(2 + i%9)); err != nil {
				t.Fatal(err)
			}
		}
		p, err := b.finishInMemory(accounts)
		if err != nil {
			t.Fatal(err)
		}
		d.add(p, Text, weight)
	}
	if err := d.seal(); err != nil {
		t.Fatal(err)
	}
	l, err := NewLoader(d, LoaderOptions{SequenceLen: 8, BatchTokens: 8, Seed: 1, Accounts: accounts}) // some documents are split
	if err != nil {
		t.Fatal(err)
	}
	reserved, _ := accounts.Total()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for epoch := range 4 {
		if l.epochRows(epoch) == 0 {
			t.Fatal("an epoch has no rows")
		}
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > documents {
		t.Errorf("four epochs of %d documents took %d bytes of the Go heap", documents, got)
	}
	ofTokens := 4*d.Tokens() + d.Tokens()/8
	if now, _ := accounts.Total(); now != reserved || reserved-ofTokens > 60*documents || reserved < ofTokens {
		t.Errorf("%d bytes were reserved, and %d are now", reserved, now)
	}
	if err := errors.Join(l.Close(), d.Close()); err != nil {
		t.Fatal(err)
	}
	if left, _ := accounts.Total(); left != 0 {
		t.Errorf("%d bytes are still reserved", left)
	}
}
