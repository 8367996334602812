package sriov_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/node/sriov"
	"github.com/nearmetal/nearmetal/internal/fabric/node/sriov/modelhost"
)

func infiniband(guid string, pkey int) fabric.FunctionSettings {
	return fabric.FunctionSettings{GUID: guid, PKey: pkey}
}

func onMLX4(t *testing.T, test func(t *testing.T, h *modelhost.Host, m *sriov.Manager)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := modelhost.New(modelhost.Config{PCI: pf, Kind: modelhost.MLX4, TotalVFs: 63, AtLoad: 7})
		defer h.Unhang()
		m, _ := open(t, h)
		must(t, m.SetCount(t.Context(), pf, 7))
		test(t, h, m)
	})
}

func TestAnAliasFunctionGetsItsGUIDAndItsPartitionOnly(t *testing.T) {
	onMLX4(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		h.PKey(pf, 5, 0x8012)
		h.PKey(pf, 6, 0x0012) // the limited one
		assign(t, m, "a", vf(3), infiniband("0e6d000000000003", 0x12))
		got := h.Truth(pf, 3)
		if got.GUID != "0e6d000000000003" || !slices.Equal(got.PKeys, []int{0x8012}) {
			t.Errorf("got GUID %s and keys %#x", got.GUID, got.PKeys)
		}
		limited := infiniband("0e6d000000000003", 0x12)
		limited.Limited = true
		assign(t, m, "a", vf(3), limited)
		if got := h.Truth(pf, 3); !slices.Equal(got.PKeys, []int{0x12}) {
			t.Errorf("as a limited member it has keys %#x", got.PKeys)
		}
		must(t, m.Release(t.Context(), owner("a"), vf(3)))
		if got := h.Truth(pf, 3); got.GUID != "" || len(got.PKeys) != 0 {
			t.Errorf("after the release it has GUID %s and keys %#x", got.GUID, got.PKeys)
		}
	})
}

func TestAnAliasFunctionWaitsForTheSubnetManager(t *testing.T) {
	onMLX4(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		_, err := m.Assign(t.Context(), owner("a"), vf(3), infiniband("0e6d000000000003", 0x12))
		if err == nil || !strings.Contains(err.Error(), "partition table of port 1") || !strings.Contains(err.Error(), "0x8012") {
			t.Errorf("got %v", err)
		}
		if got := h.Truth(pf, 3); len(got.PKeys) != 0 {
			t.Errorf("meanwhile it has keys %#x", got.PKeys)
		}
		h.PKey(pf, 1, 0x8012)
		assign(t, m, "a", vf(3), infiniband("0e6d000000000003", 0x12))
	})
}

func TestVirtualPortsNeedASubnetManagerWithVirtualization(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := modelhost.New(modelhost.Config{PCI: pf, Kind: modelhost.MLX5, TotalVFs: 63})
		m, err := sriov.Open(sriov.Config{Host: h, Dir: t.TempDir()})
		must(t, err)
		must(t, m.SetCount(t.Context(), pf, 63))
		_, err = m.Assign(t.Context(), owner("a"), vf(62), infiniband("0e6d000000000003", 0x12))
		wantError(t, err, fabric.ErrFunctionUnfit, "subnet manager with virtualization")
		m, _ = open(t, h)
		assign(t, m, "a", vf(62), infiniband("0e6d000000000003", 0x12))
		if got := h.Truth(pf, 62); got.GUID != "0e6d000000000003" || got.Link != fabric.FunctionLinkAuto {
			t.Errorf("got %+v", got.Report)
		}
		state, err := m.Bind(t.Context(), owner("a"), vf(62), fabric.DriverNative)
		must(t, err)
		if state.RDMA == "" || state.Interface == "" {
			t.Errorf("got %+v", state)
		}
		must(t, m.Release(t.Context(), owner("a"), vf(62)))
		if got := h.Truth(pf, 62); got.GUID != "" || got.Link != fabric.FunctionLinkDown {
			t.Errorf("after the release: %+v", got.Report)
		}
	})
}

func TestAChildForAPartitionIsNotTakenForTheFunctionsInterface(t *testing.T) {
	onMLX4(t, func(t *testing.T, h *modelhost.Host, m *sriov.Manager) {
		h.PKey(pf, 5, 0x8012)
		assign(t, m, "a", vf(3), infiniband("0e6d000000000003", 0x12))
		bound, err := m.Bind(t.Context(), owner("a"), vf(3), fabric.DriverNative)
		must(t, err)
		h.Child(pf, 3, "a-child") // before it by name
		now, err := m.Look(t.Context(), owner("a"), vf(3))
		must(t, err)
		if bound.Interface == "" || now.Interface != bound.Interface {
			t.Errorf("the function's interface is %q, and %q once a member has left a child on it", bound.Interface, now.Interface)
		}
	})
}
