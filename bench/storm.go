package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/nearmetal/nearmetal/internal/measure"
)

// The storm: so many machines begin at once, over a link of so many bits per second. Kernel and initrd are small for a storm to
// end within a minute; the ratio to the link's bound does not gain by it.
const (
	stormClients = 1000
	stormBits    = 1_000_000_000
	stormRounds  = 3
	kernelBytes  = 1 << 20
	initrdBytes  = 2 << 20
	loaderBytes  = 174 << 10 // Debian's snponly.efi
	// Of each frame of 1514 bytes TCP with timestamps carries 1448, TFTP with this block size 1432 of 1478.
	tcpPayload, tcpFrame   = 1448.0, 1514.0
	tftpPayload, tftpFrame = 1432.0, 1478.0
)

// stormVariable makes the bench be the clients of a storm.
const stormVariable = "NEARMETAL_BENCH_STORM"

// stormOrder is what the clients are told.
type stormOrder struct {
	Clients int
	// Digest is of what each kernel and initrd must be, so that a byte lost is noticed.
	Kernel, Initrd string
	LoaderBytes    int
}

// stormResult is what the clients saw.
type stormResult struct {
	// Seconds is when each client had its initrd, from the first one's first packet; LongestSilence what the most patient one waited for a byte.
	Seconds        []float64
	LongestSilence float64
	Failed         []string
	// Last is what kept the last one, stage by stage.
	Last string
}

// blob writes content by its digest and returns its digits.
func (c *cable) blob(size int) (string, error) {
	content := make([]byte, size)
	if _, err := rand.Read(content); err != nil {
		return "", err
	}
	sum := sha256.Sum256(content)
	digits := hex.EncodeToString(sum[:])
	return digits, os.WriteFile(filepath.Join(c.dir, digits), content, 0o644)
}

// loader writes a loader of that size.
func (c *cable) loader(size int) error {
	return os.WriteFile(filepath.Join(c.dir, "snponly.efi"), bytes.Repeat([]byte("loader.."), size/8), 0o644)
}

// storms measures network boot and, in turn, dnsmasq with nginx.
func storms(ctx context.Context, c *cable, log *slog.Logger, text *bytes.Buffer) error {
	if err := c.loader(loaderBytes); err != nil {
		return err
	}
	kernel, err := c.blob(kernelBytes)
	if err != nil {
		return err
	}
	initrd, err := c.blob(initrdBytes)
	if err != nil {
		return err
	}
	if err := c.shape(ctx, stormBits); err != nil {
		return err
	}
	defer func() { _ = c.shape(ctx, 0) }()
	order := stormOrder{Clients: stormClients, Kernel: kernel, Initrd: initrd, LoaderBytes: loaderBytes}
	perClient := (kernelBytes+initrdBytes)*tcpFrame/tcpPayload + loaderBytes*tftpFrame/tftpPayload
	atBest := perClient * stormClients * 8 / stormBits
	sides := map[string]func() (*server, error){
		"nearmetal": func() (*server, error) {
			return c.netbootd(ctx, "-machines", fmt.Sprint(stormClients), "-kernel", "sha256:"+kernel, "-initrd", "sha256:"+initrd)
		},
		"dnsmasq+nginx": func() (*server, error) { return c.byHand(ctx, order) },
	}
	totals, cpu, failed, silence := map[string][]float64{}, map[string][]float64{}, map[string]int{}, map[string]float64{}
	for round := range stormRounds {
		names := []string{"nearmetal", "dnsmasq+nginx"}
		if round%2 == 1 {
			names[0], names[1] = names[1], names[0]
		}
		for _, name := range names {
			result, used, err := c.storm(ctx, sides[name], order)
			if err != nil {
				return fmt.Errorf("storm of %s: %w", name, err)
			}
			last := measure.Quantile(result.Seconds, 1)
			totals[name] = append(totals[name], last)
			cpu[name] = append(cpu[name], used)
			failed[name] += len(result.Failed)
			silence[name] = max(silence[name], result.LongestSilence)
			log.Info("storm", "side", name, "round", round+1, "seconds", last, "over_bound", last/atBest, "median_client", measure.Median(result.Seconds),
				"cpu_seconds", used, "failed", len(result.Failed), "longest_silence", result.LongestSilence, "last", result.Last)
			if len(result.Failed) > 0 {
				log.Info("storm", "first_failure", result.Failed[0])
			}
		}
	}
	fmt.Fprintf(text, "Boot storm: %d clients at once (DHCP, TFTP, DHCP of iPXE, script, kernel and initrd: %.1f MB each) over %d Mbit/s; the link needs %.1f s\n",
		stormClients, float64(kernelBytes+initrdBytes+loaderBytes)/1e6, stormBits/1_000_000, atBest)
	for _, name := range []string{"nearmetal", "dnsmasq+nginx"} {
		fmt.Fprintf(text, "  %-14s all done in %.1f s (median of %d, %.1f to %.1f): %.3f of the bound; %d of %d failed; longest silence %.1f s; CPU %.1f s\n",
			name, measure.Median(totals[name]), len(totals[name]), measure.Quantile(totals[name], 0), measure.Quantile(totals[name], 1),
			measure.Median(totals[name])/atBest, failed[name], stormRounds*stormClients, silence[name], measure.Median(cpu[name]))
	}
	text.WriteString("\n")
	return nil
}

// byHand is what an administrator would set up: dnsmasq for DHCP and TFTP, nginx for the rest, one script for all.
func (c *cable) byHand(ctx context.Context, order stormOrder) (*server, error) {
	base := fmt.Sprintf("http://%s:%d", serverAddress, httpPort)
	script := fmt.Sprintf("#!ipxe\nkernel %[1]s/images/%[2]s initrd=initrd\ninitrd --name initrd %[1]s/images/%[3]s\nboot\n", base, order.Kernel, order.Initrd)
	if err := os.WriteFile(filepath.Join(c.dir, "boot.ipxe"), []byte(script), 0o644); err != nil {
		return nil, err
	}
	nginx, err := c.nginx()
	if err != nil {
		return nil, err
	}
	dnsmasq := c.dnsmasq("--enable-tftp", "--tftp-root="+c.dir, "--tftp-max=2000", "--dhcp-userclass=set:ipxe,iPXE",
		"--dhcp-boot=tag:!ipxe,snponly.efi", "--dhcp-boot=tag:ipxe,"+base+"/boot.ipxe")
	return c.serve(ctx, func(*server) error {
		if err := bound(ctx, "udp", 67); err != nil {
			return err
		}
		return bound(ctx, "tcp", httpPort)
	}, dnsmasq, nginx)
}

// storm runs one storm and returns what the clients saw and the processor time of the server.
func (c *cable) storm(ctx context.Context, start func() (*server, error), order stormOrder) (result stormResult, cpu float64, err error) {
	_ = os.Remove(filepath.Join(c.dir, "dnsmasq.leases"))
	s, err := start()
	if err != nil {
		return result, 0, err
	}
	defer func() {
		if stopErr := s.stop(); err == nil {
			err = stopErr
		}
	}()
	self, err := os.Executable()
	if err != nil {
		return result, 0, err
	}
	told, err := json.Marshal(order)
	if err != nil {
		return result, 0, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), stormVariable+"="+string(told))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := c.inClients(cmd); err != nil {
		return result, 0, fmt.Errorf("the clients: %w", err)
	}
	return result, s.cpuSeconds(), json.Unmarshal(out.Bytes(), &result)
}
