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

// The offered rates, in whole exchanges (DISCOVER to ACK) a second. A rate is carried when less than this share of exchanges is
// dropped; the greatest one carried, with all below it, is a server's capacity.
const (
	dhcpSeconds = 3
	dhcpRounds  = 3
	dhcpDropped = 1.0 // percent
	dhcpClients = 20000
)

func dhcpRates() []int { return []int{500, 1000, 2000, 4000, 8000, 12000, 16000} }

// dhcpResult is what perfdhcp told of one rate.
type dhcpResult struct {
	dropPercent float64
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
	capacity, delay, cpu := map[string][]float64{}, map[string][]float64{}, map[string][]float64{}
	for round := range dhcpRounds {
		order := slices.Clone(sides)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, side := range order {
			best, slow, perThousand, err := c.dhcpCapacity(ctx, start[side])
			if err != nil {
				return fmt.Errorf("DHCP of %s: %w", side, err)
			}
			capacity[side], delay[side], cpu[side] = append(capacity[side], best), append(delay[side], slow), append(cpu[side], perThousand)
			log.Info("DHCP", "side", side, "round", round+1, "exchanges_per_second", best, "ms_at_500", slow, "cpu_seconds_per_1000", perThousand)
		}
	}
	fmt.Fprintf(text, "DHCP by perfdhcp: whole exchanges a second with under %.0f%% dropped (%d clients, leases written to a file), delay at 500 a second\n",
		dhcpDropped, dhcpClients)
	for _, side := range sides {
		fmt.Fprintf(text, "  %-10s %6.0f/s (median of %d, %.0f to %.0f), %.2f of nearmetal's; %.2f ms; CPU %.3f s per 1,000 exchanges\n", side, measure.Median(capacity[side]),
			dhcpRounds, measure.Quantile(capacity[side], 0), measure.Quantile(capacity[side], 1),
			measure.Median(capacity[side])/measure.Median(capacity["nearmetal"]), measure.Median(delay[side]), measure.Median(cpu[side]))
	}
	text.WriteString("\n")
	return nil
}

// dhcpCapacity raises the rate until too much is dropped.
func (c *cable) dhcpCapacity(ctx context.Context, start func() (*server, error)) (best, delayMS, cpu float64, err error) {
	for _, name := range []string{"dnsmasq.leases", "kea.csv", "leases"} {
		_ = os.Remove(filepath.Join(c.dir, name))
	}
	s, err := start()
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	for i, rate := range dhcpRates() {
		before := s.cpuSeconds()
		result, err := c.perfdhcp(ctx, rate)
		if err != nil {
			return 0, 0, 0, err
		}
		if i == 0 {
			delayMS = result.offerMS + result.ackMS
		}
		if result.dropPercent >= dhcpDropped {
			break
		}
		best, cpu = float64(rate), (s.cpuSeconds()-before)/float64(rate*dhcpSeconds)*1000
	}
	return best, delayMS, cpu, nil
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
	perfSent     = regexp.MustCompile(`sent packets: ([0-9]+)`)
	perfReceived = regexp.MustCompile(`received packets: ([0-9]+)`)
	perfDelay    = regexp.MustCompile(`avg delay: ([0-9.]+) ms`)
)

// parsePerfdhcp reads perfdhcp's report: two sections, DISCOVER-OFFER and REQUEST-ACK.
func parsePerfdhcp(report string) (dhcpResult, error) {
	_, rest, ok := strings.Cut(report, "***Statistics for: DISCOVER-OFFER***")
	offer, ack, ok2 := strings.Cut(rest, "***Statistics for: REQUEST-ACK***")
	sent, err1 := figureOf(perfSent, offer)
	received, err2 := figureOf(perfReceived, ack)
	offerMS, err3 := figureOf(perfDelay, offer)
	ackMS, err4 := figureOf(perfDelay, ack)
	if err := errors.Join(err1, err2, err3, err4); !ok || !ok2 || err != nil || sent == 0 {
		return dhcpResult{}, fmt.Errorf("perfdhcp's report is not understood (%w): %s", err, report)
	}
	return dhcpResult{dropPercent: 100 * (1 - received/sent), offerMS: offerMS, ackMS: ackMS}, nil
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
