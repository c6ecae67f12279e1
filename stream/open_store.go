package stream

import (
	"log/slog"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/store"
	"github.com/millrace/millrace/vfs"
)

// StoreOptions say how OpenStore makes a plan's store.
type StoreOptions struct {
	Accounts    *hostmem.Accounts
	Drives      []store.Drive // of the extents that the plan keeps on disk, as many as it deals to; they are emptied
	FS          vfs.FS        // of Drives; nil: the system's
	Log         *slog.Logger  // may be nil
	AddressOnly bool          // for rehearsals: addresses without memory, and no files
}

// OpenStore reserves the extents of a plan where it keeps them: in memory, on disk, or both. It fails, with nothing
// left reserved, where there is too little of either. The disk is nil if the plan does not use it.
func OpenStore(p *plan.Plan, o StoreOptions) (s *store.Tiered, disk *store.Disk, err error) {
	var inRAM []store.Spec
	onDisk := p.InputExtents()
	for _, spec := range p.Extents() {
		if p.OnDisk(spec.ID) {
			onDisk = append(onDisk, spec)
		} else {
			inRAM = append(inRAM, spec)
		}
	}
	var opts []hostmem.Option
	if o.AddressOnly {
		opts = append(opts, hostmem.AddressOnly)
	}
	ram, err := store.NewRAM(o.Accounts, inRAM, opts...)
	if err != nil {
		return nil, nil, err
	}
	tiers := []store.Tier{{Store: ram, Specs: inRAM}}
	for _, r := range ram.Regions() {
		if err = r.Populate(); err != nil {
			break
		}
	}
	if err == nil && len(onDisk) > 0 {
		disk, err = store.NewDisk(store.DiskOptions{Drives: o.Drives, Deal: p.Deal(), FS: o.FS, Accounts: o.Accounts,
			Specs: onDisk, Quota: p.Quota(), Crew: p.Crew(), Workers: plan.DiskWorkers, Log: o.Log,
			AddressOnly: o.AddressOnly})
		tiers = append(tiers, store.Tier{Store: disk, Specs: onDisk})
	}
	if err != nil {
		ram.Close()
		return nil, nil, err
	}
	return store.NewTiered(tiers...), disk, nil
}
