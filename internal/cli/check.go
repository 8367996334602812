package cli

import (
	"net"
	"sort"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/internal/manifest"
)

// noArgs refuses arguments, as a usage error.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("'%s' takes no arguments, got %q; see '%s --help'", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	return nil
}

// firstError returns the first error that is one.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// setting is a flag's value or, when that is empty, the environment's.
func (a *app) setting(flag, variable string) string {
	if flag != "" {
		return flag
	}
	return a.Getenv(variable)
}

// checkListen refuses what is not HOST:PORT.
func checkListen(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return usage("--listen %q is not HOST:PORT; write for example 127.0.0.1:7700", addr)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil {
		return usage("--listen %q has port %q; give a number from 0 to 65535 (0: any free one)", addr, port)
	} else if n > 65535 {
		return usage("--listen %q has port %d; the highest is 65535", addr, n)
	}
	return nil
}

// checkServer refuses what is not HOST:PORT with both given.
func checkServer(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" || port == "" {
		return usage("--server %q is not HOST:PORT; write for example 10.0.0.1:7700", addr)
	}
	return nil
}

// checkNodeName refuses names that are not DNS labels; empty means the default.
func checkNodeName(name string) error {
	if name == "" {
		return nil
	}
	if problem := manifest.LabelProblem(name, manifest.MaxLabel); problem != "" {
		return usage("--name %q %s", name, problem)
	}
	return nil
}

// checkLabels refuses keys and values that are not label keys and values.
func checkLabels(flag string, labels map[string]string) error {
	keys := make([]string, 0, len(labels))
	for k := range labels {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		if problem := manifest.KeyProblem(k); problem != "" {
			return usage("%s %q %s", flag, k, problem)
		}
		if problem := manifest.ValueProblem(labels[k]); problem != "" {
			return usage("%s %s=%q %s", flag, k, labels[k], problem)
		}
	}
	return nil
}
