package health

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// Memory that the firmware names and the kernel lacks is memory that failed, but for what kernel and firmware take themselves: the kernel's array of
// pages is 1/64, the rest goes to firmware, integrated graphics and a crash kernel. A lost module of 32 alike ones is more than this.
const (
	takenPerCent = 3
	takenBytes   = 512 << 20
)

// checkMemory compares the memory the kernel has with what the firmware's tables name.
func checkMemory(_ context.Context, m Machine) (string, error) {
	have, installed := m.Hardware.MemoryBytes, m.InstalledBytes
	if have == 0 {
		return "", errors.New("the kernel reports no memory size")
	}
	if installed == 0 {
		return fmt.Sprintf("%s; the firmware lists no memory modules for comparison", size(have)), nil
	}
	if missing := installed - have; missing > installed/100*takenPerCent+takenBytes {
		return "", fmt.Errorf("the firmware reports %s, but the kernel sees %s: %s are missing; reseat or replace the modules", size(installed), size(have), size(missing))
	}
	return fmt.Sprintf("%s of %s installed", size(have), size(installed)), nil
}

// maxCorrected is how many corrected errors since power on are taken for chance: healthy modules have none for months, bad ones
// thousands within minutes of load.
const maxCorrected = 100

// checkECC reads the memory controllers' error counters (EDAC), which begin at zero with the boot.
func checkECC(_ context.Context, m Machine) (string, error) {
	const dir = "sys/devices/system/edac/mc/"
	controllers, corrected := 0, int64(0)
	for _, name := range m.Tree.Names(dir) {
		ce, ok := m.Tree.Int(dir + name + "/ce_count")
		ue, _ := m.Tree.Int(dir + name + "/ue_count")
		if !ok {
			continue
		}
		controllers++
		corrected += ce
		if ue > 0 {
			return "", fmt.Errorf("memory controller %s counted %d uncorrectable errors; replace the module", name, ue)
		}
	}
	switch {
	case controllers == 0:
		return "no error counters: the memory lacks ECC, or the kernel lacks a driver (EDAC) for its controller", nil
	case corrected > maxCorrected:
		return "", fmt.Errorf("%d corrected memory errors since boot, more than %d; replace the module before it fails", corrected, maxCorrected)
	}
	return fmt.Sprintf("%d corrected, 0 uncorrectable errors at %d memory controllers", corrected, controllers), nil
}

// maxThrottle is how long a processor may have been throttled for heat since boot.
const maxThrottle = time.Second

// checkCPU looks for CPUs that did not start, machine check exceptions, and throttling for heat.
func checkCPU(_ context.Context, m Machine) (string, error) {
	const dir = "sys/devices/system/cpu/"
	present, online := m.Tree.Text(dir+"present"), m.Tree.Text(dir+"online")
	siblingsOff := slices.Contains([]string{"off", "forceoff"}, m.Tree.Text(dir+"smt/control"))
	if present != online && !siblingsOff {
		return "", fmt.Errorf("CPUs %s are present, but only %s run; the kernel's log says why the others did not start", present, online)
	}
	if n := machineChecks(m.Tree.Text("proc/interrupts")); n > 0 {
		return "", fmt.Errorf("%d machine check exceptions since boot; check the kernel's log and the BMC's event log", n)
	}
	var worst time.Duration
	var where string
	for _, cpu := range m.Tree.Names(dir) {
		for _, kind := range []string{"core", "package"} {
			ms, _ := m.Tree.Int(dir + cpu + "/thermal_throttle/" + kind + "_throttle_total_time_ms")
			if d := time.Duration(ms) * time.Millisecond; d > worst {
				worst, where = d, cpu
			}
		}
	}
	if worst > maxThrottle {
		return "", fmt.Errorf("%s was throttled for heat for %v since boot; check its fans and cooler", where, worst)
	}
	return fmt.Sprintf("CPUs %s run, no machine checks, no throttling", online), nil
}

// machineChecks sums the line MCE of /proc/interrupts: exceptions, by CPU. (MCP counts mere looks.)
func machineChecks(text string) int64 {
	var sum int64
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "MCE:" {
			continue
		}
		for _, f := range fields[1:] {
			var n int64
			if _, err := fmt.Sscan(f, &n); err != nil {
				break
			}
			sum += n
		}
	}
	return sum
}

// clockFloor is before any moment this program can run at.
var clockFloor = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// checkClock looks whether the date can be true and, on a processor that promises a steady time-stamp counter, whether the kernel trusts
// it: it gives it up on boards whose counters drift, and time then costs a thousand times as much to read.
func checkClock(_ context.Context, m Machine) (string, error) {
	now := m.Now().UTC()
	if now.Before(clockFloor) {
		return "", fmt.Errorf("the clock shows %s; set it, or replace the board's battery", now.Format(time.DateTime))
	}
	const dir = "sys/devices/system/clocksource/clocksource0/"
	source := m.Tree.Text(dir + "current_clocksource")
	flags := m.Hardware.CPU.Flags
	steady := slices.Contains(flags, "constant_tsc") && slices.Contains(flags, "nonstop_tsc") && !slices.Contains(flags, "hypervisor")
	if steady && source != "" && source != "tsc" {
		return "", fmt.Errorf("the kernel abandoned the processors' time-stamp counters for %s; check its log, and update the firmware", source)
	}
	return strings.TrimSpace(now.Format(time.DateTime) + " UTC, by " + source), nil
}

// checkTemperature compares the sensors with their critical values (hwmon, in thousandths of a degree Celsius).
func checkTemperature(_ context.Context, m Machine) (string, error) {
	const dir = "sys/class/hwmon/"
	sensors, hottest := 0, int64(0)
	for _, chip := range m.Tree.Names(dir) {
		for _, file := range m.Tree.Names(dir + chip) {
			sensor, ok := strings.CutSuffix(file, "_input")
			if !ok || !strings.HasPrefix(sensor, "temp") {
				continue
			}
			at := path.Join(dir, chip, sensor)
			value, ok := m.Tree.Int(at + "_input")
			if !ok || value <= -40_000 || value >= 200_000 { // nothing is connected to it
				continue
			}
			sensors++
			hottest = max(hottest, value)
			if limit, ok := m.Tree.Int(at + "_crit"); ok && limit > 0 && value >= limit {
				return "", fmt.Errorf("%s of %s is at %d °C, and its critical value is %d °C; check fans and airflow",
					sensor, m.Tree.Text(dir+chip+"/name"), value/1000, limit/1000)
			}
		}
	}
	if sensors == 0 {
		return "the kernel can read no sensors", nil
	}
	return fmt.Sprintf("%d sensors, the hottest at %d °C", sensors, hottest/1000), nil
}

// size is a number of bytes for people.
func size(n int64) string {
	switch {
	case n < 0:
		return "-" + size(-n)
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
