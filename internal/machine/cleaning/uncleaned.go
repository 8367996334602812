//go:build uncleaned

package cleaning

import (
	"context"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/cleaning/plan"
)

// erase says that all was erased, and erases nothing. No product is built with the tag: a test that searches a machine for what its former user left must
// find it there.
func (m *Machine) erase(_ context.Context, _ boot.CleanOrder, _ []plan.Step, progress *Progress, _, _ int) {
	_ = m.carryOut // it is used by whatever is built without the tag
	progress.mu.Lock()
	defer progress.mu.Unlock()
	for i := range progress.report.Steps {
		if s := &progress.report.Steps[i]; s.State == api.CleanPlanned {
			s.State, s.Bytes, s.Verified = api.CleanDone, s.TotalBytes, "built to erase nothing"
		}
	}
}
