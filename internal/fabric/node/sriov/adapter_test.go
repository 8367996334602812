package sriov_test

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/node/sriov"
	"github.com/nearmetal/nearmetal/internal/fabric/node/sriov/modelhost"
)

func TestAWholePortComesBackWithItsFunctions(t *testing.T) {
	in(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		whole := fabric.Function{Kind: api.PortPF, Device: pf}
		assign(t, m, "a", whole, fabric.FunctionSettings{})
		state, err := m.Bind(t.Context(), owner("a"), whole, fabric.DriverVFIO)
		must(t, err)
		h.Use(pf, -1, "secret of a", false)
		if state.Driver != fabric.DriverVFIO || state.PCI != pf {
			t.Errorf("got %+v", state)
		}
		_, err = m.Assign(t.Context(), owner("b"), vf(1), ethernet(1))
		wantError(t, err, fabric.ErrFunctionHeld, "assignment a has adapter")
		must(t, m.Release(t.Context(), owner("a"), whole))
		if got := h.Truth(pf, -1); got.Driver != "igb" || got.Memory != "" {
			t.Errorf("the port is %+v", got)
		}
		assign(t, m, "b", vf(6), ethernet(1))
	})
	synctest.Test(t, func(t *testing.T) {
		m, _ := open(t, modelhost.New(modelhost.Config{PCI: pf, Kind: modelhost.IGB, TotalVFs: 7, Addressed: true}))
		_, err := m.Assign(t.Context(), owner("a"), fabric.Function{Kind: api.PortPF, Device: pf}, fabric.FunctionSettings{})
		wantError(t, err, fabric.ErrFunctionUnfit, "the node itself uses")
	})
}

func TestAdaptersAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := modelhost.New(modelhost.Config{PCI: pf, Kind: modelhost.MLX5Ethernet, TotalVFs: 63, NUMANode: 1}, modelhost.Config{PCI: other, Kind: modelhost.MLX4, TotalVFs: 16, AtLoad: 7})
		m, _ := open(t, h)
		must(t, m.SetCount(t.Context(), pf, 63))
		adapters, err := m.Adapters(t.Context())
		must(t, err)
		a, b := adapters[0], adapters[1]
		if !a.RoCEv2 || a.Eswitch != "legacy" || a.NUMANode != 1 || a.VPI || len(a.Functions) != 63 || a.Functions[62].PCI == "" {
			t.Errorf("got %+v", a)
		}
		if b.Layer != sriov.InfiniBand || !b.VPI || b.GUID == "" || b.RateMbps != 100000 || b.VFs != 7 {
			t.Errorf("got %+v", b)
		}
		groups := map[string]bool{}
		for _, f := range a.Functions {
			groups[f.IOMMUGroup] = true
		}
		if len(groups) != 63 || slices.ContainsFunc(a.Functions, func(f sriov.VirtualFunction) bool { return len(f.Company) > 0 }) {
			t.Errorf("63 functions have %d groups", len(groups))
		}
		wantError(t, m.SetCount(t.Context(), other, 8), fabric.ErrFunctionUnfit, "num_vfs=8", "/etc/modprobe.d")
	})
}
