package main

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The test runs this program's own binary as the three processes.
func TestMain(m *testing.M) {
	if os.Getenv("KV_HANDOFF_TEST") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// A process is one of the three, and what it prints.
type process struct {
	*exec.Cmd
	input  io.Writer
	output *bufio.Reader
}

func start(t *testing.T, args ...string) process {
	t.Helper()
	command := exec.Command(os.Args[0], args...)
	command.Env, command.Stderr = append(os.Environ(), "KV_HANDOFF_TEST=1"), os.Stderr
	input, err := command.StdinPipe()
	check(err)
	output, err := command.StdoutPipe()
	check(err)
	check(command.Start())
	t.Cleanup(func() { command.Process.Kill(); command.Wait() })
	return process{command, input, bufio.NewReader(output)}
}

func (p process) line(t *testing.T, begin string) string {
	t.Helper()
	line, err := p.output.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, begin) {
		t.Fatalf("%q is no %q: %v", line, begin, err)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, begin))
}

// rest returns what the process still prints, and its status.
func (p process) rest(t *testing.T) (string, int) {
	t.Helper()
	text, err := io.ReadAll(p.output)
	check(err)
	if err := p.Wait(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return string(text), p.ProcessState.ExitCode()
}

// three starts the processes, up to the moment at which the first layers have come.
func three(t *testing.T) (prefill [2]process, decode process, addresses [2]string) {
	t.Helper()
	for rank, number := range []string{"0", "1"} {
		prefill[rank] = start(t, "prefill", number)
		addresses[rank] = prefill[rank].line(t, "ADDRESS ")
	}
	decode = start(t, "decode", addresses[0], addresses[1])
	id := decode.line(t, "ID ") + "\n"
	for _, rank := range prefill {
		_, err := io.WriteString(rank.input, id)
		check(err)
	}
	decode.line(t, "LAYERS ")
	return prefill, decode, addresses
}

func TestTheCacheArrives(t *testing.T) {
	prefill, decode, _ := three(t)
	if text, status := decode.rest(t); status != 0 || !strings.Contains(text, "ended: RECEIVED OK; 256 tokens valid") {
		t.Errorf("decode ended with %d: %s", status, text)
	}
	for rank := range prefill {
		if text, status := prefill[rank].rest(t); status != 0 || !strings.HasPrefix(text, "ended: SENT OK; ") {
			t.Errorf("prefill %d ended with %d: %s", rank, status, text)
		}
	}
}

func TestTheTakeSaysWhichRankHasDied(t *testing.T) {
	for range 10 {
		prefill, decode, addresses := three(t)
		check(prefill[1].Process.Kill())
		text, status := decode.rest(t)
		if status == 0 { // the machine was so busy that the kill came after the last layer
			continue
		}
		if status != 3 || !strings.Contains(text, "ended: PEER_LOST PEER_LOST by rank 1 (peer "+addresses[1]+"): ") ||
			!strings.Contains(text, "; 0 tokens valid") {
			t.Errorf("decode ended with %d: %s", status, text)
		}
		if text, status := prefill[0].rest(t); status != 3 {
			t.Errorf("prefill 0 ended with %d: %s", status, text)
		}
		return
	}
	t.Error("the handoff was always faster than the kill")
}
