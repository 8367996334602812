package vm_test

import (
	"slices"
	"strings"
	"testing"
)

func TestAGuestHasTheCPUModelThatItsMemberAskedFor(t *testing.T) {
	r := newRig(t, needGuests(t))
	if check := r.Check(t.Context()); !slices.Contains(check.CPUModels, "Westmere") || slices.Contains(check.CPUModels, "Haswell") {
		t.Errorf("the node offers %q; QEMU emulates Westmere wholly, and no Haswell", check.CPUModels)
	}
	m := r.member(t)
	m.Assignment.CPUModel = "Haswell"
	if err := r.Driver.Start(t.Context(), m); err == nil || !strings.Contains(err.Error(), `CPU model "Haswell" can't be carried on this node`) {
		t.Errorf("a model that can't be emulated: %v", err)
	}
	m.Assignment.CPUModel = "Westmere"
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	// Westmere has AES instructions, and no AVX, which QEMU emulates otherwise.
	cpu := r.tell(t, m.Assignment.ID, order{Read: "/proc/cpuinfo"}).Text
	for text, want := range map[string]bool{"Westmere E56xx/L56xx/X56xx (Nehalem-C)": true, " aes ": true, " avx ": false} {
		if strings.Contains(cpu, text) != want {
			t.Errorf("/proc/cpuinfo says %q: want %t\n%s", text, want, cpu)
		}
	}
	if err := r.Save(t.Context(), m.Assignment.ID); err != nil {
		t.Fatal(err)
	}
	next := r.successor(t, m)
	if err := r.Restore(t.Context(), next, m.Assignment.ID); err != nil {
		t.Fatal(err)
	}
	if again := r.tell(t, next.Assignment.ID, order{Read: "/proc/cpuinfo"}).Text; !strings.Contains(again, "Westmere E56xx/L56xx/X56xx (Nehalem-C)") {
		t.Errorf("after it was saved and restored, /proc/cpuinfo says\n%s", again)
	}
}
