package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"syscall"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/transfer"
)

// nobody is the user that the reader of a preload runs as.
const nobody = 65534

// preload reads all of a dataset through its cache, and verifies it. The cache keeps it: it is large enough, and nobody else's files are in it.
func (s *Store) preload(ctx context.Context, c *cached, order *dataset.CacheOrder, through server, at string) error {
	backing, _ := dataset.BackingOf(order.Files, order.Credential != nil)
	for i, f := range order.Files {
		s.mu.Lock()
		c.loading = fmt.Sprintf("is being read into its cache: file %d of %d", i+1, len(order.Files))
		s.mu.Unlock()
		s.cfg.Changed()
		var err error
		if web, is := through.(webServer); is {
			err = readWeb(ctx, web, f)
		} else {
			err = s.readThrough(ctx, at, backing.XRootD.Paths[i], f)
		}
		if err != nil {
			return fmt.Errorf("file %s can't be preloaded: %w", f.Path, err)
		}
	}
	return nil
}

// readThrough reads a file through a cache, and verifies it.
func (s *Store) readThrough(ctx context.Context, at, path string, f api.DatasetFile) error {
	program, err := exec.LookPath(transfer.Program)
	if err != nil {
		return transfer.ErrNotInstalled
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--nopbar", "--silent", "root://"+at+"/"+path, "-")
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "XRD_CONNECTIONWINDOW=5", "XRD_CONNECTIONRETRY=1", "XRD_STREAMERRORWINDOW=5", fmt.Sprintf("XRD_REQUESTTIMEOUT=%d", 4*max(s.cfg.PatienceSeconds, 1))}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.cfg.Space.Do(cmd.Start); err != nil {
		return err
	}
	verified := transfer.VerifyStream(out, f)
	if verified != nil {
		cancel() // what is left to be read is of no use
	}
	err = cmd.Wait()
	switch {
	case err != nil && ctx.Err() == nil, err != nil && !errors.Is(verified, transfer.ErrChecksum):
		return fmt.Errorf("xrdcp: %s", strings.TrimSpace(said.String()+" "+err.Error()))
	default:
		return verified
	}
}

// readWeb reads a file through a cache of web servers, and verifies it.
func readWeb(ctx context.Context, through webServer, f api.DatasetFile) error {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return through.Dial(ctx) }}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, (&url.URL{Scheme: "http", Host: "cache", Path: "/" + f.Path}).String(), nil)
	if err != nil {
		return err
	}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 200))
		return fmt.Errorf("its source answers %s: %s", answer.Status, strings.TrimSpace(string(said)))
	}
	return transfer.VerifyStream(answer.Body, f)
}
