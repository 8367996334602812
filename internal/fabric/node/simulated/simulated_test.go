package simulated

import (
	"errors"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

const guid = "0002c90000200001"

func TestThePortHasOneOwnerAtATimeAlsoAfterARestart(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	open := func() *Adapter {
		a, err := Open(dir, "ib0", guid)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	port := fabric.Function{Kind: api.PortPF, Device: Device, GUID: guid}
	settings := fabric.FunctionSettings{GUID: guid, PKey: 0x100}
	first, next := fabric.FunctionOwner{Assignment: "u.a-0.1", Generation: 1}, fabric.FunctionOwner{Assignment: "u.a-0.2", Generation: 2}
	a := open()
	if _, err := a.Assign(ctx, first, port, settings); err != nil {
		t.Fatal(err)
	}
	a = open()
	if held := a.Held(first.Assignment); len(held) != 1 || held[0] != port {
		t.Errorf("after a restart the owner holds %v", held)
	}
	if _, err := a.Assign(ctx, next, port, settings); !errors.Is(err, fabric.ErrFunctionHeld) {
		t.Errorf("the next owner got it: %v", err)
	}
	if err := a.Release(ctx, first, port); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Assign(ctx, next, port, settings); err != nil {
		t.Fatal(err)
	}
	a = open()
	if err := a.Release(ctx, first, port); err != nil {
		t.Errorf("a late release: %v", err)
	}
	if held := a.Held(next.Assignment); len(held) != 1 {
		t.Error("the late release of the former owner took it from the next")
	}
	if _, err := a.Assign(ctx, first, port, settings); !errors.Is(err, fabric.ErrFunctionHeld) {
		t.Errorf("a late order of the former owner: %v", err)
	}
	if err := a.Release(ctx, next, port); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Assign(ctx, next, port, settings); !errors.Is(err, fabric.ErrFunctionOutdated) {
		t.Errorf("a late order, after the release: %v", err)
	}
	if err := a.Readmit(ctx, next.Assignment); err != nil {
		t.Fatal(err)
	}
	a = open()
	if _, err := a.Assign(ctx, next, port, settings); err != nil {
		t.Errorf("an owner that begins anew: %v", err)
	}
}

func TestWhatTheSimulatedAdapterHasNotIsRefused(t *testing.T) {
	a, err := Open(t.TempDir(), "ib0", guid)
	if err != nil {
		t.Fatal(err)
	}
	owner := fabric.FunctionOwner{Assignment: "u.a-0.1", Generation: 1}
	port := fabric.Function{Kind: api.PortPF, Device: Device, GUID: guid}
	if _, err := a.Assign(t.Context(), owner, fabric.Function{Kind: api.PortVF, Device: Device, Part: "vf0"}, fabric.FunctionSettings{GUID: guid}); !errors.Is(err, fabric.ErrNoFunction) {
		t.Errorf("a virtual function: %v", err)
	}
	if _, err := a.Assign(t.Context(), owner, port, fabric.FunctionSettings{GUID: "0e6d000000010002"}); !errors.Is(err, fabric.ErrFunctionUnfit) {
		t.Errorf("another GUID: %v", err)
	}
	if _, err := a.Assign(t.Context(), owner, port, fabric.FunctionSettings{GUID: guid}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Bind(t.Context(), owner, port, fabric.DriverVFIO); !errors.Is(err, fabric.ErrFunctionUnfit) {
		t.Errorf("for a virtual machine: %v", err)
	}
}
