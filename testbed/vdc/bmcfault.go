package vdc

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// FaultKind is what is wrong with a BMC, at Redfish and IPMI alike.
type FaultKind string

// The faults of BMCs.
const (
	FaultNone     FaultKind = ""
	FaultSlow     FaultKind = "slow"     // answers after Delay
	FaultSaysOn   FaultKind = "says-on"  // tells that the power is on, whatever it is
	FaultSaysOff  FaultKind = "says-off" // tells that the power is off, whatever it is
	FaultUnknown  FaultKind = "unknown"  // can't tell the power: Redfish null, IPMI completion code 0xff
	FaultGarbage  FaultKind = "garbage"  // answers what is neither Redfish nor IPMI
	FaultSessions FaultKind = "sessions" // has Limit sessions and refuses further ones
	FaultRefuse   FaultKind = "refuse"   // refuses users and passwords that are right
	FaultSilent   FaultKind = "silent"   // takes what is sent and never answers
)

// FaultKinds are all but FaultNone.
func FaultKinds() []FaultKind {
	return []FaultKind{FaultSlow, FaultSaysOn, FaultSaysOff, FaultUnknown, FaultGarbage, FaultSessions, FaultRefuse, FaultSilent}
}

// BMCFault is what is wrong with a BMC. Zero: nothing.
type BMCFault struct {
	Kind FaultKind
	// Delay of FaultSlow; 5 s when zero.
	Delay time.Duration
	// Limit of FaultSessions; 8 when zero.
	Limit int
}

// complete fills in defaults.
func (f BMCFault) complete() (BMCFault, error) {
	if f.Kind != FaultNone && !slices.Contains(FaultKinds(), f.Kind) {
		names := make([]string, 0, len(FaultKinds()))
		for _, kind := range FaultKinds() {
			names = append(names, string(kind))
		}
		return f, fmt.Errorf("a BMC has no fault %q; its faults are %s", f.Kind, strings.Join(names, ", "))
	}
	f.Delay = orElse(f.Delay, 5*time.Second)
	f.Limit = orElse(f.Limit, 8)
	return f, nil
}

// bmcFault is the fault in force.
type bmcFault struct {
	mu    sync.Mutex
	fault BMCFault
}

func (b *bmcFault) get() BMCFault {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fault
}

func (b *bmcFault) set(f BMCFault) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fault = f
}

// writeFault tells ipmi.py, which looks at each packet.
func writeFault(dir, machine string, f BMCFault) error {
	text, err := json.Marshal(map[string]any{"kind": f.Kind, "delay_seconds": f.Delay.Seconds(), "limit": f.Limit})
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "bmc", machine+".fault")
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return errors.Join(os.Rename(path+".new", path))
}
