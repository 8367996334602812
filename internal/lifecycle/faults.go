package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// FaultInput is what a decision about a node's hardware errors depends on.
type FaultInput struct {
	// Told are those that events have told; nil: none were.
	Told *api.FaultRecord
	Seen api.HardwareFaults
	// Tenant is true while the word is that of a machine's users, whose kernel counts what they like.
	Tenant bool
	Now    time.Time
}

// PlanFaults returns what a rise of a node's hardware errors has people told, and the record of it; nil when nothing is to be told or
// noted. Errors that memory corrects are told each time their number has doubled, and so is everything that a tenant says: who makes numbers rise
// makes few events.
func PlanFaults(in FaultInput) (next *api.FaultRecord, messages []string) {
	told := api.FaultRecord{}
	if in.Told != nil {
		told = *in.Told
	}
	out := api.FaultRecord{HardwareFaults: api.HardwareFaults{Boot: in.Seen.Boot}, ToldAt: in.Now}
	say := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		if in.Tenant {
			text = "the machine's users report: " + text
		}
		messages = append(messages, text)
	}
	for _, m := range in.Seen.Memory {
		was := api.MemoryFaults{Controller: m.Controller}
		if i := slices.IndexFunc(told.Memory, func(o api.MemoryFaults) bool { return o.Controller == m.Controller }); i >= 0 && told.Boot == in.Seen.Boot {
			was = told.Memory[i]
		}
		if m.Uncorrected > was.Uncorrected && (!in.Tenant || doubled(was.Uncorrected, m.Uncorrected)) {
			say("memory controller %s counted %d uncorrectable errors since its boot, %d of them new; replace the module", m.Controller, m.Uncorrected, m.Uncorrected-was.Uncorrected)
			was.Uncorrected = m.Uncorrected
		}
		if doubled(was.Corrected, m.Corrected) {
			say("memory controller %s corrected %d errors since its boot", m.Controller, m.Corrected)
			was.Corrected = m.Corrected
		}
		out.Memory = append(out.Memory, was)
	}
	for _, d := range in.Seen.Disks {
		was := api.DiskFaults{Name: d.Name, Model: d.Model, Serial: d.Serial, MediaErrors: d.MediaErrors} // errors before the first look are not new
		if i := slices.IndexFunc(told.Disks, func(o api.DiskFaults) bool { return o.Name == d.Name && o.Serial == d.Serial }); i >= 0 {
			was = told.Disks[i]
		}
		if d.Failing != was.Failing {
			if d.Failing != "" {
				say("disk %s (%s, serial %s): %s", d.Name, d.Model, d.Serial, d.Failing)
			}
			was.Failing = d.Failing
		}
		if d.MediaErrors > was.MediaErrors && (!in.Tenant || doubled(was.MediaErrors, d.MediaErrors)) {
			say("disk %s (%s, serial %s) counted %d errors of its medium, %d of them new", d.Name, d.Model, d.Serial, d.MediaErrors, d.MediaErrors-was.MediaErrors)
			was.MediaErrors = d.MediaErrors
		}
		out.Disks = append(out.Disks, was)
	}
	if in.Told != nil && same(told.HardwareFaults, out.HardwareFaults) || in.Told == nil && len(out.Memory)+len(out.Disks) == 0 {
		return nil, nil
	}
	return &out, messages[:min(len(messages), faultMessages)]
}

// faultMessages is how many messages one look makes, at most.
const faultMessages = 20

// doubled reports whether a count has risen from nothing, or to twice what was told.
func doubled(told, now int64) bool { return now > 0 && now >= 2*told }

func same(a, b api.HardwareFaults) bool {
	return a.Boot == b.Boot && slices.Equal(a.Memory, b.Memory) && slices.Equal(a.Disks, b.Disks)
}
