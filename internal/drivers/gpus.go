package drivers

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cuda"
	"github.com/millrace/millrace/device/cuda/driver"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/fault"
)

// openGPUs opens the GPUs that are wanted; none where the CPU is to compute.
func (o Opener) openGPUs(want wanted, accounts *hostmem.Accounts) ([]device.Device, error) {
	load := o.Load
	if load == nil {
		load = driver.Load
	}
	var all []device.Device
	api, err := load()
	if err == nil {
		all, err = o.openSome(api, want, accounts)
	} else {
		err = fmt.Errorf("device %s: %w", want.value, err)
	}
	switch {
	case err == nil:
		return all, nil
	case want.most == 0, errors.Is(err, errTooFew):
		return nil, err
	case !errors.Is(err, driver.ErrMissing): // there is a GPU, or was meant to be
		o.OnCPU(err)
	}
	return nil, nil
}

// openSome opens the first one alone, which finds what is missing and has the driver compile what it keeps, and then
// the others at once. Where no numbers are asked for, one that does not open is left out.
func (o Opener) openSome(api *driver.API, want wanted, accounts *hostmem.Accounts) ([]device.Device, error) {
	ordinals, err := o.pick(api, want)
	if err != nil {
		return nil, err
	}
	opened, errs := make([]device.Device, len(ordinals)), make([]error, len(ordinals))
	var said sync.Map // notes without the device: what several GPUs say is said once
	note := func(line string) {
		_, text, _ := strings.Cut(line, ": ")
		if _, again := said.LoadOrStore(text, true); !again {
			o.note("%s", line)
		}
	}
	open := func(i int) {
		d, err := cuda.Open(cuda.Options{Ordinal: ordinals[i], API: api, Accounts: accounts, OwnProducts: o.OwnProducts,
			NoPeers: o.NoPeers, Note: note})
		if errs[i] = err; err == nil {
			opened[i] = d
		}
	}
	if open(0); errs[0] == nil || want.most > 1 {
		var group fault.Group
		for i := 1; i < len(ordinals); i++ {
			group.Go(func() { open(i) })
		}
		group.Wait()
	}
	var all []device.Device
	for _, d := range opened {
		if d != nil {
			all = append(all, d)
		}
	}
	for i, err := range errs {
		switch {
		case err == nil:
		case want.most == 0 || len(all) == 0:
			return nil, errors.Join(err, closeAll(all))
		default:
			o.note("device %s: the run computes without cuda:%d: %v", want.value, ordinals[i], err)
		}
	}
	return all, nil
}

// pick returns the numbers of the GPUs that are wanted, all of one kind.
func (o Opener) pick(api *driver.API, want wanted) ([]int, error) {
	switch {
	case len(want.ordinals) == 1:
		return want.ordinals, nil
	case want.first && o.Parts <= 1:
		return []int{0}, nil
	}
	kinds, err := cuda.Kinds(api)
	switch {
	case err != nil:
		return nil, fmt.Errorf("device %s: %w", want.value, err)
	case want.ordinals != nil:
		return want.ordinals, sameKind(want, kinds)
	}
	if !want.first {
		return o.own(want, o.firstKind(want, kinds))
	}
	want.most = device.MaxDevices // to be divided
	all, err := o.own(want, o.firstKind(want, kinds))
	if err != nil {
		return nil, err
	}
	return all[:1], nil
}

// errTooFew is of a machine with fewer GPUs than processes.
var errTooFew = errors.New("which has fewer GPUs than that")

// own returns the GPUs that are this process's, of those that all processes of the machine share.
func (o Opener) own(want wanted, all []int) ([]int, error) {
	if o.Parts <= 1 {
		return all, nil
	}
	if len(all) < o.Parts {
		return nil, fmt.Errorf("device %s: %d processes were started on this machine, %w (%d): start as many as "+
			"there are, or one for all of them; where each sees a GPU of its own, set device to cuda:0", want.value,
			o.Parts, errTooFew, len(all))
	}
	return all[o.Part*len(all)/o.Parts : (o.Part+1)*len(all)/o.Parts], nil
}

// firstKind returns the numbers of the GPUs of the first kind that can be used; where there is no such GPU that of the
// first one, since opening it says why.
func (o Opener) firstKind(want wanted, kinds []cuda.Kind) (picked []int) {
	var others []string
	for ordinal, kind := range kinds {
		switch {
		case kind == cuda.Kind{}:
		case picked != nil && kind != kinds[picked[0]]:
			others = append(others, named(ordinal, kind))
		case len(picked) < want.most:
			picked = append(picked, ordinal)
		}
	}
	if picked == nil {
		return []int{0}
	}
	if len(others) > 0 && want.most > 1 {
		o.note("device %s: GPUs of other kinds than %s are left out: %s; `device` can name them", want.value,
			named(picked[0], kinds[picked[0]]), strings.Join(others, ", "))
	}
	return picked
}

// sameKind refuses GPUs of several kinds. Opening says what is wrong with those that cannot be used.
func sameKind(want wanted, kinds []cuda.Kind) error {
	first := -1
	for _, ordinal := range want.ordinals {
		switch {
		case ordinal >= len(kinds) || kinds[ordinal] == cuda.Kind{}:
		case first < 0:
			first = ordinal
		case kinds[ordinal] != kinds[first]:
			return fmt.Errorf("device %q: %s and %s are of different kinds, and would compute different bits; name "+
				"GPUs of one kind", want.value, named(first, kinds[first]), named(ordinal, kinds[ordinal]))
		}
	}
	return nil
}

func named(ordinal int, kind cuda.Kind) string { return fmt.Sprintf("cuda:%d (%v)", ordinal, kind) }

// note tells people something.
func (o Opener) note(format string, args ...any) {
	if o.Note != nil {
		o.Note(fmt.Sprintf(format, args...))
	}
}
