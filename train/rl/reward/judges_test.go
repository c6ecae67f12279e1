package reward

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/surroundings"
)

// judgeArg is the first argument of a process of the test program that plays a judge.
const judgeArg = "play-a-judge"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == judgeArg {
		play(os.Args[2], os.Args[3:])
		return
	}
	os.Exit(surroundings.Run(m))
}

// command is one of a judge that play knows.
func played(how string, args ...string) []string {
	return append([]string{os.Args[0], judgeArg, how}, args...)
}

// asked is the line that a judge reads.
type asked struct {
	ID            int64           `json:"id"`
	Prompt        string          `json:"prompt"`
	Messages      json.RawMessage `json:"messages"`
	Completion    string          `json:"completion"`
	CompletionIDs []int32         `json:"completion_ids"`
	Finish        string          `json:"finish"`
	Row           map[string]any  `json:"row"`
}

// play reads lines and judges them: each answer has its length as reward, except where the way to play says otherwise.
func play(how string, args []string) {
	out := bufio.NewWriter(os.Stdout)
	in := bufio.NewReader(os.Stdin)
	number := func() int { n, _ := strconv.Atoi(args[0]); return n }
	var kept []string
	for lines := 0; ; lines++ {
		if out.Flush(); how == "hang" {
			select {}
		}
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var a asked
		if err := json.Unmarshal(line, &a); err != nil {
			panic(err)
		}
		reply := fmt.Sprintf(`{"id": %d, "reward": %d, "metrics": {"bytes": %[2]d}}`, a.ID, len(a.Completion))
		switch {
		case how == "exit" && lines == number():
			os.Exit(7)
		case how == "once": // a process for each line
			fmt.Fprintln(out, reply)
			out.Flush()
			return
		case how == "poison" && a.Completion == "poison":
			fmt.Fprintln(os.Stderr, "it was poison")
			os.Exit(3)
		case how == "dead":
			fmt.Fprintln(os.Stderr, strings.Repeat("Traceback (most recent call last) ", 1000), "KeyError: 'answer'")
			os.Exit(1)
		case how == "null":
			reply = fmt.Sprintf(`{"id": %d, "reward": null}`, a.ID)
		case how == "nan":
			reply = fmt.Sprintf(`{"id": %d, "reward": NaN, "metrics": {}}`, a.ID)
		case how == "text":
			reply = "debug: " + a.Completion
		case how == "stray":
			reply = fmt.Sprintf(`{"id": %d, "reward": 1}`, a.ID+1000)
		case how == "twice":
			reply += "\n" + reply
		case how == "long":
			for range 64 << 10 {
				out.WriteString(strings.Repeat("x", 1<<10))
			}
		case how == "babble":
			for range 10_000 {
				fmt.Fprintln(os.Stderr, strings.Repeat("warning ", 10))
			}
			reply = "\n\n  \n" + reply
		case how == "closed":
			os.Stdout.Close()
			select {}
		case how == "environment":
			reply = fmt.Sprintf(`{"id": %d, "reward": %d}`, a.ID, len(os.Environ()))
		case how == "echo":
			if string(a.Messages) != `[{"role":"user","content":"<p>"}]` || a.Finish != "stop" || a.Prompt != "p\n" ||
				!slices.Equal(a.CompletionIDs, []int32{3, 4}) || a.Row["answer"] != 7.0 {
				reply = fmt.Sprintf(`{"id": %d, "reward": -1}`, a.ID)
			}
		case how == "backwards":
			if kept = append(kept, reply); len(kept) < number() {
				continue
			}
			slices.Reverse(kept)
			reply, kept = strings.Join(kept, "\n"), nil
		}
		fmt.Fprintln(out, reply)
	}
}
