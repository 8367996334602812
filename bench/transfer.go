package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/measure"
)

const (
	transferRounds = 5
	// tftpBytes is a large loader, fetched by so many at once; tftpBlock fits a frame.
	tftpBytes, tftpFetches, tftpBlock = 8 << 20, 8, 1432
	// imageBytes is an image, fetched whole by so many at once.
	imageBytes, imageFetches = 512 << 20, 4
)

// transferVariable makes the bench be the clients of a transfer.
const transferVariable = "NEARMETAL_BENCH_TRANSFER"

// transferOrder is what the clients fetch, and how many of them.
type transferOrder struct {
	URL    string // of images; empty: TFTP
	Window int
	Count  int
	Bytes  int64
}

// runTransfer is the clients: it prints the seconds until all had all.
func runTransfer() error {
	var order transferOrder
	if err := json.Unmarshal([]byte(os.Getenv(transferVariable)), &order); err != nil {
		return err
	}
	errs := make([]error, order.Count)
	var group sync.WaitGroup
	begin := time.Now()
	for i := range order.Count {
		group.Go(func() {
			var n int64
			var err error
			if order.URL != "" {
				n, err = discard(order.URL)
			} else {
				var got int
				got, err = tftpGet(net.ParseIP(relayAddress), "snponly.efi", tftpBlock, order.Window)
				n = int64(got)
			}
			if err == nil && n != order.Bytes {
				err = fmt.Errorf("%d bytes of %d", n, order.Bytes)
			}
			errs[i] = err
		})
	}
	group.Wait()
	fmt.Println(time.Since(begin).Seconds())
	return errors.Join(errs...)
}

func discard(url string) (int64, error) {
	response, err := http.Get(url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	buffer := make([]byte, 1<<20)
	return io.CopyBuffer(struct{ io.Writer }{io.Discard}, response.Body, buffer)
}

// transfers measures TFTP beside tftpd-hpa and images beside nginx.
func transfers(ctx context.Context, c *cable, log *slog.Logger, text *bytes.Buffer) error {
	if err := c.loader(tftpBytes); err != nil {
		return err
	}
	image, err := c.blob(imageBytes)
	if err != nil {
		return err
	}
	ours := func() (*server, error) { return c.netbootd(ctx) }
	lockstep := transferOrder{Window: 1, Count: tftpFetches, Bytes: tftpBytes}
	windowed := lockstep
	windowed.Window = 16
	images := transferOrder{URL: fmt.Sprintf("http://%s:%d/images/%s", serverAddress, httpPort, image), Count: imageFetches, Bytes: imageBytes}
	compare := comparison{cable: c, log: log, text: text}
	fmt.Fprintf(text, "TFTP: %d at once fetch %d MiB each in blocks of %d bytes\n", tftpFetches, tftpBytes>>20, tftpBlock)
	err = compare.run(ctx, []contestant{
		{"nearmetal", ours, lockstep},
		{"tftpd-hpa", func() (*server, error) {
			return c.serve(ctx, func(*server) error { return bound(ctx, "udp", 69) },
				exec.Command("in.tftpd", "-L", "-4", "-a", serverAddress+":69", "-s", "-u", "root", c.dir))
		}, lockstep},
		{"nearmetal, windows of 16", ours, windowed},
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(text, "Images: %d at once fetch %d MiB each\n", imageFetches, imageBytes>>20)
	return compare.run(ctx, []contestant{
		{"nearmetal", ours, images},
		{"nginx", func() (*server, error) {
			cmd, err := c.nginx()
			if err != nil {
				return nil, err
			}
			return c.serve(ctx, func(*server) error { return bound(ctx, "tcp", httpPort) }, cmd)
		}, images},
	})
}

// contestant is a server and what is fetched from it.
type contestant struct {
	name  string
	start func() (*server, error)
	order transferOrder
}

// comparison runs contestants in turn and writes what came of it; the first one is what the others are compared with.
type comparison struct {
	cable *cable
	log   *slog.Logger
	text  *bytes.Buffer
}

func (p comparison) run(ctx context.Context, contestants []contestant) error {
	rates, cpu := map[string][]float64{}, map[string][]float64{}
	for round := range transferRounds + 1 {
		order := slices.Clone(contestants)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, side := range order {
			seconds, used, err := p.cable.transfer(ctx, side)
			if err != nil {
				return fmt.Errorf("%s: %w", side.name, err)
			}
			if round == 0 {
				continue // warms the page cache
			}
			gigabytes := float64(side.order.Bytes) * float64(side.order.Count) / 1e9
			rates[side.name], cpu[side.name] = append(rates[side.name], gigabytes/seconds), append(cpu[side.name], used/gigabytes)
			p.log.Info("transfer", "side", side.name, "round", round, "gigabytes_per_second", gigabytes/seconds, "cpu_seconds_per_gigabyte", used/gigabytes)
		}
	}
	first := contestants[0].name
	for _, side := range contestants {
		rate, used := rates[side.name], cpu[side.name]
		fmt.Fprintf(p.text, "  %-26s %7.3f GB/s (median of %d, %.3f to %.3f), %.2f of the first; ", side.name, measure.Median(rate), len(rate),
			measure.Quantile(rate, 0), measure.Quantile(rate, 1), measure.Median(rate)/measure.Median(rates[first]))
		if measure.Median(used) == 0 { // tftpd-hpa's children are reaped unseen: nobody counts their time
			p.text.WriteString("CPU not known\n")
			continue
		}
		fmt.Fprintf(p.text, "CPU %.3f s per GB (%.3f to %.3f), %.2f of the first\n", measure.Median(used), measure.Quantile(used, 0),
			measure.Quantile(used, 1), measure.Median(used)/measure.Median(cpu[first]))
	}
	p.text.WriteString("\n")
	return nil
}

func (c *cable) transfer(ctx context.Context, side contestant) (seconds, cpu float64, err error) {
	s, err := side.start()
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	self, err := os.Executable()
	if err != nil {
		return 0, 0, err
	}
	told, err := json.Marshal(side.order)
	if err != nil {
		return 0, 0, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), transferVariable+"="+string(told))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	before := s.cpuSeconds()
	if err := c.inClients(cmd); err != nil {
		return 0, 0, fmt.Errorf("the clients: %w", err)
	}
	_, err = fmt.Sscan(out.String(), &seconds)
	return seconds, s.cpuSeconds() - before, err
}
