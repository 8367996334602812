package vm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/internal/cpumodel"
)

// libvirtModels is where libvirt has what it knows of CPU models: a file x86_NAME.xml for each.
const libvirtModels = "/usr/share/libvirt/cpu_map"

// modelsPatience bounds asking QEMU for its CPU models, which takes some tenths of a second, and half a minute and more where the host is emulated and
// its root still comes over the network.
const modelsPatience = 3 * time.Minute

// knownModels are the CPU models that this host can carry, as the QEMU said that was there then.
type knownModels struct {
	emulator time.Time // when the program was written
	names    []string
}

// cpuModels returns the CPU models that machines can have on this host with all their features, sorted.
func (d *Driver) cpuModels(ctx context.Context) ([]string, error) {
	program, err := os.Stat(emulator)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	known := d.models
	d.mu.Unlock()
	if known != nil && known.emulator.Equal(program.ModTime()) {
		return known.names, nil
	}
	names, err := askModels(ctx, d.cfg.Accelerate() == nil)
	if err != nil {
		return nil, fmt.Errorf("asking QEMU for its CPU models: %w", err)
	}
	d.mu.Lock()
	d.models = &knownModels{emulator: program.ModTime(), names: names}
	d.mu.Unlock()
	return names, nil
}

// askModels starts a QEMU without a machine that would run, and asks it. libvirt would start the emulators of all architectures first.
func askModels(ctx context.Context, kvm bool) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, modelsPatience)
	defer cancel()
	accelerator := "tcg"
	if kvm {
		accelerator = "kvm"
	}
	cmd := exec.CommandContext(ctx, emulator, "-machine", machineType+",accel="+accelerator, "-m", "16", "-S", "-nodefaults", "-no-user-config", "-display", "none", "-qmp", "stdio")
	cmd.Stdin = strings.NewReader(`{"execute":"qmp_capabilities"}{"execute":"query-cpu-definitions"}{"execute":"quit"}`)
	// It ends with an agent that is killed, to which its end is bound by the thread that starts it (prctl(2)).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	said, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && len(exit.Stderr) > 0 {
			err = fmt.Errorf("%w: %.300s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return nil, err
	}
	names, err := readModels(string(said))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(names, func(name string) bool { return isMissing(filepath.Join(libvirtModels, "x86_"+name+".xml")) }), nil
}

// readModels picks those CPU models out of QEMU's answers (QEMU, "query-cpu-definitions") that have a fixed meaning and lack no feature here.
func readModels(said string) ([]string, error) {
	var names []string
	answered := false
	for lines := json.NewDecoder(strings.NewReader(said)); lines.More(); {
		var line struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := lines.Decode(&line); err != nil {
			return nil, err
		}
		if line.Error != nil {
			return nil, fmt.Errorf("it says: %.300s", line.Error.Desc)
		}
		var models []struct {
			Name          string   `json:"name"`
			MigrationSafe bool     `json:"migration-safe"`
			Unavailable   []string `json:"unavailable-features"`
		}
		if json.Unmarshal(line.Return, &models) != nil {
			continue // the answer to another command
		}
		answered = true
		for _, m := range models {
			if m.MigrationSafe && len(m.Unavailable) == 0 && cpumodel.Known(m.Name) {
				names = append(names, m.Name)
			}
		}
	}
	if !answered {
		return nil, errors.New("it does not list them")
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// checkModel refuses a member whose CPU model this host can't carry: QEMU would leave out what is missing without a word.
func (d *Driver) checkModel(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	models, err := d.cpuModels(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(models, name) {
		return fmt.Errorf("CPU model %q can't be carried on this node, which has: %s", name, strings.Join(models, ", "))
	}
	return nil
}
