// Package nftables runs nft(8) and reads the number of the ruleset's generation, in the network namespace of the calling thread.
//
// It must never know what a rule means: tables belong to the packages that write them. Start with Run.
package nftables

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Run runs nft(8) with input on its standard input, and returns what it prints. The error is exec.ErrNotFound if nft is not installed.
func Run(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "nft", args...)
	cmd.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return "", fmt.Errorf("nft was not found: install the package nftables, and have /usr/sbin in PATH: %w", err)
		}
		return "", fmt.Errorf("nft %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Load carries out a script as one transaction.
func Load(ctx context.Context, script string) error {
	_, err := Run(ctx, script, "-f", "-")
	return err
}

// Check reports why the kernel would not take a script, and changes nothing.
func Check(ctx context.Context, script string) error {
	_, err := Run(ctx, script, "-c", "-f", "-")
	return err
}

// List returns the whole ruleset, with numbers for priorities and protocols: a machine without /etc/protocols has no names for them.
func List(ctx context.Context) (string, error) { return Run(ctx, "", "-y", "-p", "list", "ruleset") }

// Generation returns the number of the namespace's present ruleset, which every transaction increments. It costs one netlink message,
// where nft costs milliseconds.
func Generation() (uint32, error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	messages, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil || len(messages) == 0 {
		return 0, err
	}
	attrs, err := nl.ParseRouteAttrAsMap(messages[0][nl.SizeofNfgenmsg:])
	if err != nil {
		return 0, err
	}
	id, ok := attrs[unix.NFTA_GEN_ID]
	if !ok || len(id.Value) < 4 {
		return 0, unix.EBADMSG
	}
	return binary.BigEndian.Uint32(id.Value), nil
}
