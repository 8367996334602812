//go:build !uncleaned

package cleaning

import (
	"context"

	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/cleaning/plan"
)

// erase carries a plan out. The file uncleaned.go has what stands in its place where a test proves that its search finds what a tenant left.
func (m *Machine) erase(ctx context.Context, order boot.CleanOrder, steps []plan.Step, progress *Progress, firmware, tpm int) {
	m.carryOut(ctx, order, steps, progress, firmware, tpm)
}
