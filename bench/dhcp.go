package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/measure"
)

// Two loads: one that any server bears, for the delay of an exchange; and more than any bears, for how many it completes meanwhile.
const (
	dhcpEasy, dhcpFlood = 200, 8000 // exchanges (DISCOVER to ACK) offered a second
	dhcpSeconds         = 4
	dhcpRounds          = 3
	dhcpClients         = 20000
)

// dhcpResult is what perfdhcp told of one rate.
type dhcpResult struct {
	completed float64 // whole exchanges
	// offerMS and ackMS are the mean delays.
	offerMS, ackMS float64
}

// dhcpLoad measures DHCP by Kea's perfdhcp: network boot, Kea and dnsmasq, each with addresses for strangers that it writes to a file.
func dhcpLoad(ctx context.Context, c *cable, log *slog.Logger, text *bytes.Buffer) error {
	if err := c.loader(loaderBytes); err != nil {
		return err
	}
	sides := []string{"nearmetal", "kea", "dnsmasq"}
	start := map[string]func() (*server, error){
		"nearmetal": func() (*server, error) { return c.netbootd(ctx, "-leases", filepath.Join(c.dir, "leases")) },
		"kea":       func() (*server, error) { return c.kea(ctx) },
		"dnsmasq": func() (*server, error) {
			return c.serve(ctx, func(*server) error { return bound(ctx, "udp", 67) }, c.dnsmasq())
		},
	}
	completed, delay, cpu := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	for round := range dhcpRounds {
		order := slices.Clone(sides)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, side := range order {
			rate, slow, used, err := c.dhcpSide(ctx, start[side])
			if err != nil {
				return fmt.Errorf("DHCP of %s: %w", side, err)
			}
			completed[side], delay[side], cpu[side] = append(completed[side], rate), append(delay[side], slow), append(cpu[side], used)
			log.Info("DHCP", "side", side, "round", round+1, "completed_per_second", rate, "delay_ms", slow, "cpu_ms_per_exchange", used)
		}
	}
	fmt.Fprintf(text, "DHCP by perfdhcp (%d clients, leases written to a file): whole exchanges completed a second at %d offered; delay of one at %d a second\n",
		dhcpClients, dhcpFlood, dhcpEasy)
	for _, side := range sides {
		fmt.Fprintf(text, "  %-10s %6.0f/s (median of %d, %.0f to %.0f), %.2f of nearmetal's; %.2f ms (%.2f to %.2f); CPU %.3f ms per exchange\n", side,
			measure.Median(completed[side]), dhcpRounds, measure.Quantile(completed[side], 0), measure.Quantile(completed[side], 1),
			measure.Median(completed[side])/measure.Median(completed["nearmetal"]), measure.Median(delay[side]), measure.Quantile(delay[side], 0),
			measure.Quantile(delay[side], 1), measure.Median(cpu[side]))
	}
	text.WriteString("\n")
	return nil
}

// dhcpSide measures one server, fresh: exchanges completed a second under the flood, milliseconds of one under the easy load, and
// processor milliseconds of one under the flood.
func (c *cable) dhcpSide(ctx context.Context, start func() (*server, error)) (rate, delayMS, cpuMS float64, err error) {
	for _, name := range []string{"dnsmasq.leases", "kea.csv", "leases"} {
		_ = os.Remove(filepath.Join(c.dir, name))
	}
	s, err := start()
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	easy, err := c.perfdhcp(ctx, dhcpEasy)
	if err != nil {
		return 0, 0, 0, err
	}
	before := s.cpuSeconds()
	flood, err := c.perfdhcp(ctx, dhcpFlood)
	if err != nil {
		return 0, 0, 0, err
	}
	return flood.completed / dhcpSeconds, easy.offerMS + easy.ackMS, (s.cpuSeconds() - before) / max(flood.completed, 1) * 1000, nil
}

// perfdhcp offers one rate for a while.
func (c *cable) perfdhcp(ctx context.Context, rate int) (dhcpResult, error) {
	cmd := exec.CommandContext(ctx, "perfdhcp", "-4", "-l", relayAddress, "-r", strconv.Itoa(rate), "-R", strconv.Itoa(dhcpClients),
		"-p", strconv.Itoa(dhcpSeconds), "-W", "500000", serverAddress)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := c.inClients(cmd)
	var exit *exec.ExitError
	if err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 3) { // 3: it ran, and something was dropped
		return dhcpResult{}, fmt.Errorf("perfdhcp: %w: %s", err, out.String())
	}
	return parsePerfdhcp(out.String())
}

var (
	perfReceived = regexp.MustCompile(`received packets: ([0-9]+)`)
	perfDelay    = regexp.MustCompile(`avg delay: ([0-9.]+) ms`)
)

// parsePerfdhcp reads perfdhcp's report: two sections, DISCOVER-OFFER and REQUEST-ACK.
func parsePerfdhcp(report string) (dhcpResult, error) {
	_, rest, ok := strings.Cut(report, "***Statistics for: DISCOVER-OFFER***")
	offer, ack, ok2 := strings.Cut(rest, "***Statistics for: REQUEST-ACK***")
	received, err1 := figureOf(perfReceived, ack)
	offerMS, err2 := figureOf(perfDelay, offer)
	ackMS, err3 := figureOf(perfDelay, ack)
	if err := errors.Join(err1, err2, err3); !ok || !ok2 || err != nil {
		return dhcpResult{}, fmt.Errorf("perfdhcp's report can't be parsed (%w): %s", err, report)
	}
	return dhcpResult{completed: received, offerMS: offerMS, ackMS: ackMS}, nil
}

func figureOf(pattern *regexp.Regexp, text string) (float64, error) {
	found := pattern.FindStringSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("no %s", pattern)
	}
	return strconv.ParseFloat(found[1], 64)
}

// kea runs Kea with its memfile, as Debian ships it, but in the foreground and without a control socket.
func (c *cable) kea(ctx context.Context) (*server, error) {
	conf := fmt.Sprintf(`{"Dhcp4": {"interfaces-config": {"interfaces": ["%s"], "dhcp-socket-type": "udp"},
 "lease-database": {"type": "memfile", "persist": true, "name": "%s/kea.csv", "lfc-interval": 0}, "valid-lifetime": 3600,
 "subnet4": [{"subnet": "10.77.0.0/16", "pools": [{"pool": "10.77.16.1 - 10.77.255.254"}]}],
 "loggers": [{"name": "kea-dhcp4", "severity": "ERROR", "output_options": [{"output": "stderr"}]}]}}
`, bootLink, c.dir)
	path := filepath.Join(c.dir, "kea.json")
	if err := os.WriteFile(path, []byte(conf), 0o644); err != nil {
		return nil, err
	}
	cmd := exec.Command("kea-dhcp4", "-c", path)
	cmd.Env = append(os.Environ(), "KEA_PIDFILE_DIR="+c.dir, "KEA_LOCKFILE_DIR="+c.dir)
	return c.serve(ctx, func(*server) error { return bound(ctx, "udp", 67) }, cmd)
}
