package plan

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/nn"
)

// NamedMachine is a machine to ask "what if" about, without having it.
type NamedMachine struct {
	Name    string
	Machine Machine
	Device  device.Info
	Devices int // of that kind in the host; a step is dealt to all of them
	// Budgets where a run file names none: what is left of the device's memory, of the RAM and of the drive.
	DeviceBytes, HostBytes, DiskBytes int64
	RatedWriteBytes                   int64    // what the maker of a drive warrants to be written in its life
	Sources                           []string // of the rates; what such a machine cannot do comes first
}

// ProgramBytes returns the reserve of a plan for the memory of the process that it does not place: code, Go heap with
// the garbage of some steps and, with a GPU, what its driver keeps in host memory, which is a guess. It follows from
// the devices alone. The memory that a process takes at the moment differs by megabytes from start to start, and a
// plan made from it would have other sizes, and so other bits, each time.
func ProgramBytes(dev device.Info, devices int) int64 {
	if dev.Unified {
		return unifiedProgramBytes
	}
	return gpuProgramBytes + int64(max(devices-1, 0))*contextBytes
}

// Measured on a CPU: 15 MiB of code, 15 to 22 of Go heap and 4 to 5 of the Go runtime's own, whatever the model and its
// tokenizer. The tokenizer has gone when a run is planned.
const (
	unifiedProgramBytes = 40 << 20
	gpuProgramBytes     = 1 << 30
	contextBytes        = 256 << 20 // of a further GPU: a guess
)

// Shares of a data sheet's figure that are taken to arrive, where no measurement is known: assumptions, the same for
// all machines, so that their plans can be compared with each other. `millrace probe` measures the machine that it
// runs on.
const (
	linkShare   = 0.80 // of a link's raw rate in one direction, to the host or to another GPU
	dramShare   = 0.70 // of DRAM bandwidth, for AdamW and copies alike
	diskShare   = 0.90 // of the drive's sequential rates
	budgetShare = 0.90 // of RAM and of the drive's capacity; a choice
)

// shares relates a GPU's rates to its figures.
type shares struct {
	matMul    float64 // of tensor-core peak, dense, fp32 accumulation
	f32       float64 // of CUDA-core peak
	attention float64 // of tensor-core peak, in fp32 of CUDA-core peak: forward and backward, fused
	memory    float64 // of device memory bandwidth
	source    string  // of those that were measured; names those that are assumed
}

// assumedShares stands in for shares that were not measured, of a GPU without measurements or of one that lacks some.
var assumedShares = shares{0.65, 0.80, 0.35, 0.80, "all assumed"}

// Shares of GPUs that were measured. Those of products are of the largest square of random numbers in a public
// collection, 10,240, which is measured last and comes nearest to a long run. Attention's is that of kernels of the
// kind that this program has.
var (
	ampere3090 = shares{0.70, 0.70, 0.35, 0.80,
		"steps of MegaTrain (arXiv 2604.05091) and LazyTrain execute about 0.70 of the bf16 peak; the fastest products in PyTorch" +
			" run at 76.7 TFLOPS in bf16, more than the sheet has, and 24.8 in fp32 (" + collection + "); attention and memory are assumed"}
	ada4090 = shares{0.95, 0.62, 0.35, 0.80,
		"steps of SlideFormer (arXiv 2603.16428) execute 0.87 to 0.95 of the bf16 peak, recomputation counted; " + largeProducts +
			"158.5 TFLOPS in bf16 and 51.4 in fp32 (" + collection + ", issue 78); attention and memory are assumed"}
	hopperPCIe = shares{0.62, 0.70, 0.35, 0.80,
		largeProducts + "471.8 TFLOPS in bf16 and 35.8 in fp32 (" + collection + ", issue 95); " + flashAttention2 +
			"; memory is assumed"}
	hopper     = shares{0.73, 0.74, 0.35, 0.80, hopperProducts + "; " + flashAttention2 + "; memory is assumed"}
	hopperH200 = shares{0.73, 0.74, 0.35, 0.90,
		hopperProducts + ", whose fastest one in bf16, 798, is that of an H200, 790; " + flashAttention2 +
			"; a copy of 8.6 GB on an H200 reads and writes 4.3 TB/s (PyTorch 2.11)"}
	ampereA100 = shares{0.76, 0.88, 0.35, 0.80,
		fastProducts + "264.5 TFLOPS in bf16 and 19.2 in fp32 on an A100 SXM4 80 GB (" + collection + ")" + ofFastest}
	ampereA100PCIe = shares{0.68, 0.85, 0.35, 0.80,
		largeProducts + "211.7 TFLOPS in bf16 and 16.7 in fp32 on an A100 PCIe 40 GB (" + collection +
			", issue 108); attention and memory are assumed"}
	ampereA6000 = shares{0.72, 0.56, 0.35, 0.80,
		fastProducts + "123.3 TFLOPS in bf16 and 23.9 in fp32 (" + collection + ")" + ofFastest}
	adaL40S = shares{0.67, 0.46, 0.35, 0.80,
		fastProducts + "269.2 TFLOPS in bf16 and 46.9 in fp32 on an L40S (" + collection + ")" + ofFastest}
	blackwell5090 = shares{0.85, 0.53, 0.35, 0.80,
		largeProducts + "178.9 TFLOPS in bf16 and 55.5 in fp32 on the slowest of three cards (" + collection +
			", issue 200), and 237 and 240 in bf16, more than the sheet has, on the others; attention and memory are assumed"}
	blackwell5060Ti = shares{0.85, 0.53, 0.35, 0.80,
		"those of an RTX 5090, which has the same generation of cores, are assumed"}
	blackwellB200 = shares{0.68, 0.79, 0.35, 0.80,
		fastProducts + "1,696 TFLOPS in bf16 and 66.2 in fp32 (" + collection + ")" + ofFastest}
	blackwellGB10 = shares{0.73, 0.80, 0.35, 0.80,
		"products run at 91 TFLOPS in bf16, and memory at 218 GB/s (github.com/huggingface/kernels, pull request 283); " +
			"fp32 and attention are assumed"}
	volta = shares{0.71, 0.92, 0.35, 0.80,
		largeProducts + "89.4 TFLOPS in fp16 and 14.5 in fp32 on a V100 SXM2 (" + collection +
			", issue 140); attention and memory are assumed"}
)

const (
	collection      = "github.com/zzc0721/torch-performance-test-data"
	largeProducts   = "products of 10,240 x 10,240 random numbers in PyTorch run at "
	fastProducts    = "the fastest products of random numbers in PyTorch run at "
	ofFastest       = "; 0.90 of that is taken, as products of 10,240 x 10,240 have on an H100 SXM; attention and memory are assumed"
	hopperProducts  = largeProducts + "719.7 TFLOPS in bf16 and 49.6 in fp32 on an H100 SXM (" + collection + ", issue 79)"
	flashAttention2 = "FlashAttention-2 reaches 35% of an H100's peak (FlashAttention-3, arXiv 2407.08608, abstract)"
)

// text has the shares and where they are from.
func (s shares) text() string {
	return fmt.Sprintf("shares of the GPU's figures that are taken to arrive: bf16 products %.2f, fp32 products %.2f, attention %.2f, "+
		"device memory %.2f: %s",
		s.matMul, s.f32, s.attention, s.memory, s.source)
}

// GPUOpsPerSec counts kernels with next to no work that a GPU is taken to run one after the other: 4 us each.
const GPUOpsPerSec = 250e3

const gigabyte = 1e9

// core8BytesPerSec is what a core reads and writes in an update with moments in 8 bits, which is bound by arithmetic:
// 49 GB/s with 16 processors on the host of an H100 (benchmarks/gpu), taken as 8 cores of an Intel Xeon (model 207). A
// core of that model did 7.3 to 8.2 in its first cache, where nothing waits for memory.
const core8BytesPerSec = 49e9 / 8

// operationShares tells where the rates of other operations of GPUs come from.
func operationShares() string {
	var of []string
	for class, s := range gpuStands {
		if s.share > 0 && s.share != 1 {
			of = append(of, fmt.Sprintf("%s %s", nn.Class(class), s.text()))
		}
	}
	return "rates of other operations, as shares that an H100 was measured to have (benchmarks/gpu, call 4), a guess " +
		"for other GPUs: " +
		strings.Join(of, ", ")
}

// gpu has the figures of a data sheet for a GPU and its link. Figures that a sheet gives with sparsity are halved, and
// those of a link for both directions as well.
type gpu struct {
	name                         string
	memory                       int64   // bytes a program can see
	tensorTFLOPS, f32TFLOPS      float64 // 16-bit dense with fp32 accumulation; CUDA cores
	memoryGBPerSec, linkGBPerSec float64 // the link in one direction
	shares                       shares
	source                       string
	lacks                        string // why it is a what-if only; empty if it is not
}

// noBF16 warns in plans for GPUs before Ampere.
const noBF16 = "what-if: this GPU has no bf16 units and is older than sm_80, which kernels are built for; the plan takes its fp16 rate for bf16, and the program does not run on it"

// hostSystem is the rest of the machine.
type hostSystem struct {
	ram          int64
	dramGBPerSec float64 // all channels
	cores        int     // assumed where no data sheet of the machine names them
	isShared     bool    // the device computes on it, so that a copy to the device reads and writes it
	drive        drive
	source       string
}

// Of a GB10's 128 GB a program sees 119.7 GiB, as PyTorch says. The plan keeps the device's memory and the host's
// apart, as the program does, and divides them so.
const (
	gb10DeviceBytes = 33 << 30
	gb10HostBytes   = 1197*(1<<30)/10 - gb10DeviceBytes
)

// drive has the figures of a data sheet for a drive, or for several as one. Its write rate is the one that lasts for
// hours, past the pseudo-SLC cache of a consumer drive, since a run writes its state again every step.
type drive struct {
	bytes                       int64
	readGBPerSec, writeGBPerSec float64
	ratedWriteBytes             int64
	source                      string
}

// The GPUs. PCIe x16 carries 15.75 GB/s in one direction as generation 3 (8 GT/s a lane, 128b/130b), 31.5 as 4 and 63
// as 5.
var (
	rtx2060Laptop = gpu{"NVIDIA GeForce RTX 2060 laptop, 6 GB", 6 << 30, 18.4, 4.6, 336, 15.75, assumedShares,
		"GPU: TU106 of 115 W, 30 SMs at a boost clock of 1.2 GHz, 192 bits of GDDR6 at 14 Gb/s: 336 GB/s, fp32 4.6 TFLOPS; a Turing SM of a GeForce does 512 FLOP a clock in fp16 with fp32 accumulation (NVIDIA Turing whitepaper, RTX 2070: 29.9 TFLOPS from 36 SMs at 1.62 GHz), so 18.4 TFLOPS; PCIe 3.0 x16",
		noBF16}
	rtx3090 = gpu{"NVIDIA GeForce RTX 3090, 24 GB", 24 << 30, 71, 35.6, 936, 31.5, ampere3090,
		"GPU: NVIDIA Ampere GA102 whitepaper, appendix A: bf16 with fp32 accumulation 71 TFLOPS, fp32 35.6 TFLOPS, 936 GB/s, PCIe 4.0 x16", ""}
	rtx4090 = gpu{"NVIDIA GeForce RTX 4090, 24 GB", 24 << 30, 165.2, 82.6, 1008, 31.5, ada4090,
		"GPU: NVIDIA Ada GPU architecture whitepaper, appendix A: bf16 with fp32 accumulation 165.2 TFLOPS, fp32 82.6 TFLOPS, 1,008 GB/s, PCIe 4.0 x16", ""}
	h100PCIe = gpu{"NVIDIA H100 PCIe, 80 GB", 79 << 30, 756, 51, 2000, 63, hopperPCIe,
		"GPU: NVIDIA H100 data sheet, column PCIe: bf16 1,513 TFLOPS with sparsity, so 756 dense; fp32 51 TFLOPS, 2 TB/s, PCIe 5.0 128 GB/s for both directions", ""}
	h100SXM = gpu{"NVIDIA H100 SXM, 80 GB", 79 << 30, 989, 67, 3350, 63, hopper,
		"GPU: NVIDIA H100 data sheet, column SXM: bf16 1,979 TFLOPS with sparsity, so 989 dense; fp32 67 TFLOPS, 3.35 TB/s, PCIe 5.0 128 GB/s for both directions", ""}
	h200 = gpu{"NVIDIA H200, 141 GB", 139 << 30, 989, 67, 4800, 63, hopperH200,
		"GPU: NVIDIA H200 data sheet, column SXM: bf16 1,979 TFLOPS with sparsity, so 989 dense; fp32 67 TFLOPS, 4.8 TB/s, PCIe 5.0 128 GB/s for both directions", ""}
	gh200 = gpu{"NVIDIA GH200, 96 GB", 94 << 30, 989, 67, 4000, 450, hopper,
		"GPU: NVIDIA GH200 data sheet, 96 GB HBM3: bf16 989 TFLOPS dense, fp32 67 TFLOPS, 4 TB/s, NVLink-C2C 900 GB/s for both directions", ""}
	a100PCIe40 = gpu{"NVIDIA A100 PCIe, 40 GB", 39 << 30, 312, 19.5, 1555, 31.5, ampereA100PCIe,
		"GPU: NVIDIA A100 data sheet, column 40 GB PCIe: bf16 312 TFLOPS dense, fp32 19.5 TFLOPS, 1,555 GB/s, PCIe 4.0 64 GB/s for both directions", ""}
	a100SXM80 = gpu{"NVIDIA A100 SXM, 80 GB", 79 << 30, 312, 19.5, 2039, 31.5, ampereA100,
		"GPU: NVIDIA A100 data sheet, column 80 GB SXM: bf16 312 TFLOPS dense, fp32 19.5 TFLOPS, 2,039 GB/s, PCIe 4.0 64 GB/s for both directions", ""}
	rtxA6000 = gpu{"NVIDIA RTX A6000, 48 GB", 47 << 30, 154.8, 38.7, 768, 31.5, ampereA6000,
		"GPU: NVIDIA RTX A6000 data sheet: tensor performance 309.7 TFLOPS with sparsity, so 154.8 dense; fp32 38.7 TFLOPS, 768 GB/s, PCIe 4.0 x16", ""}
	rtx6000Ada = gpu{"NVIDIA RTX 6000 Ada, 48 GB", 47 << 30, 364.2, 91.1, 960, 31.5, adaL40S,
		"GPU: NVIDIA RTX 6000 Ada data sheet: tensor performance 1,457 TFLOPS in fp8 with sparsity, so 364.2 dense in bf16; fp32 91.1 TFLOPS, 960 GB/s, PCIe 4.0 x16; the shares are those of an L40S, which has the same chip", ""}
	l40s = gpu{"NVIDIA L40S, 48 GB", 44 << 30, 362.05, 91.6, 864, 31.5, adaL40S,
		"GPU: NVIDIA L40S data sheet: bf16 362.05 TFLOPS dense, 733 with sparsity; fp32 91.6 TFLOPS, 864 GB/s, of 48 GB 44 GiB with ECC, PCIe 4.0 x16 64 GB/s for both directions", ""}
	rtx5090 = gpu{"NVIDIA GeForce RTX 5090, 32 GB", 31 << 30, 209.5, 104.8, 1792, 63, blackwell5090,
		"GPU: NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A: bf16 with fp32 accumulation 209.5 TFLOPS, fp32 104.8 TFLOPS, 1,792 GB/s, PCIe 5.0 x16", ""}
	rtx5060Ti = gpu{"NVIDIA GeForce RTX 5060 Ti, 16 GB", 15 << 30, 47.4, 23.7, 448, 31.5, blackwell5060Ti,
		"GPU: NVIDIA GeForce RTX 5060 Ti specifications: 4,608 cores in 36 SMs at a boost clock of 2.57 GHz, so fp32 " +
			"23.7 TFLOPS; 128 bits of GDDR7 at 28 Gb/s: 448 GB/s; PCIe 5.0 x8; that an SM does as much in a clock as an " +
			"RTX 5090's is assumed: 512 FLOP in bf16 with fp32 accumulation (209.5 TFLOPS from 170 SMs at 2.41 GHz), so " +
			"47.4 TFLOPS; where the board has PCIe 4.0, the link is half as fast", ""}
	b200 = gpu{"NVIDIA B200, 180 GB", 178 << 30, 2250, 75, 7700, 63, blackwellB200,
		"GPU: NVIDIA Blackwell data sheet, HGX B200: of eight, bf16 36 PFLOPS with sparsity, so 2,250 TFLOPS dense each; fp32 600 TFLOPS, so 75; 180 GB at 7.7 TB/s; PCIe 5.0 128 GB/s for both directions", ""}
	// gb10's memory is the machine's: the plan gives a share of it to the device.
	gb10 = gpu{"NVIDIA GB10 (DGX Spark)", gb10DeviceBytes, 125, 31, 273, 300, blackwellGB10,
		"GPU: NVIDIA DGX Spark data sheet: 1 PFLOP in fp4 with sparsity, so 125 TFLOPS dense in bf16, an eighth; fp32 31 TFLOPS and NVLink-C2C 600 GB/s for both directions (Hot Chips 2025)", ""}
	v100 = gpu{"NVIDIA V100 SXM3, 32 GB (one of a DGX-2's 16)", 31 << 30, 125, 15.7, 900, 15.75, volta,
		"GPU: NVIDIA V100 data sheet, column NVLink: fp16 tensor 125 TFLOPS, fp32 15.7 TFLOPS, 900 GB/s; PCIe 3.0 x16; one GPU of 16 is used", noBF16}
)

// The drives.
var (
	consumer3 = drive{2e12, 3.5, 1.75, 1200e12, "drive: Samsung 970 EVO Plus 2 TB data sheet: 3.5 GB/s read, 1.75 GB/s written past Intelligent TurboWrite (note 4), 1,200 TB rated"}
	consumer4 = drive{2e12, 7.0, 2.0, 1200e12, "drive: Samsung 980 PRO 2 TB data sheet: 7.0 GB/s read, 2.0 GB/s written past Intelligent TurboWrite, 1,200 TB rated"}
	server4   = drive{7.68e12, 6.7, 4.0, 14016e12, "drive: Samsung PM9A3 7.68 TB data sheet: 6.7 GB/s read, 4.0 GB/s written; one drive write a day, for five years"}
	server5   = drive{7.68e12, 13, 6.6, 14016e12, "drive: Samsung PM1743 7.68 TB, Samsung's announcement of December 2021: 13 GB/s read, 6.6 GB/s written, the most of any capacity; one drive write a day, for five years"}
	dgx2Array = drive{8 * 3.84e12, 8 * 3.2, 8 * 1.8, 8 * 7008e12, "drives: NVIDIA DGX-2 data sheet, 30 TB of NVMe, as 8 x 3.84 TB in one array; 3.2 GB/s read and 1.8 GB/s written each and one drive write a day for five years are assumed"}
	dgxArray  = drive{8 * 3.84e12, 8 * 6.7, 8 * 4.0, 8 * 7008e12,
		"drives: NVIDIA DGX A100, H100 and B200 data sheets, 8 x 3.84 TB of NVMe, as one array; a Samsung PM9A3's " +
			"6.7 GB/s read and 4.0 GB/s written each, and one drive write a day for five years, are assumed"}
)

// nvlink has the figures of a data sheet for the links of a GPU to the others of its host.
type nvlink struct {
	gbPerSec float64 // in one direction
	source   string
}

// nvlinks holds, by name, the GPUs with links to all others of a host. Bridges between two cards are left out.
var nvlinks = map[string]nvlink{
	h100SXM.name: {450, "NVLink: NVIDIA H100 data sheet, column SXM: 900 GB/s for both directions; copies between " +
		"two run at 371 to 377 GB/s (github.com/NVIDIA/nccl, issue 1264)"},
	h200.name:      {450, "NVLink: NVIDIA H200 data sheet, column SXM: 900 GB/s for both directions"},
	a100SXM80.name: {300, "NVLink: NVIDIA A100 data sheet, column 80 GB SXM: 600 GB/s for both directions"},
	b200.name: {900, "NVLink: NVIDIA Blackwell data sheet, HGX B200: of eight 14.4 TB/s for both directions, so " +
		"1.8 TB/s each"},
	v100.name: {150, "NVLink: NVIDIA V100 data sheet, column NVLink: 300 GB/s for both directions"},
}

// Machines are the named machines.
func Machines() []NamedMachine {
	ddr4, ddr5 := 51.2, 70.4
	desktop4 := func(ram int64) hostSystem {
		return hostSystem{ram, ddr4, 8, false, consumer4, "RAM: two channels of DDR4-3200, 2 x 8 B x 3.2 GT/s = 51.2 GB/s"}
	}
	desktop5 := func(ram int64) hostSystem {
		return hostSystem{ram, ddr5, 16, false, consumer4, "RAM: two channels of DDR5-4400, 2 x 8 B x 4.4 GT/s = 70.4 GB/s; that four modules run at 4.4 GT/s is assumed, some processors warrant 3.6"}
	}
	epyc4 := func(ram int64) hostSystem {
		return hostSystem{ram, 204.8, 32, false, server4, "RAM: eight channels of DDR4-3200 (EPYC 7002 and 7003, one module each), 8 x 8 B x 3.2 GT/s = 204.8 GB/s"}
	}
	epyc9 := func(ram int64, sockets int) hostSystem {
		rate := 460.8 * float64(sockets)
		return hostSystem{ram, rate, 32 * sockets, false, server4, fmt.Sprintf("RAM: twelve channels of DDR5-4800 a socket (EPYC "+
			"9004, one module each), %d x 12 x 8 B x 4.8 GT/s = %.0f GB/s, for all GPUs together; each has 16 lanes "+
			"of its own", sockets, rate)}
	}
	const gib = 1 << 30
	return []NamedMachine{
		whatIf("rtx2060-laptop-6gb", rtx2060Laptop, hostSystem{16 * gib, 42.7, 6, false, consumer3, "RAM: 16 GB, two channels of DDR4-2666, 2 x 8 B x 2.67 GT/s = 42.7 GB/s"}),
		whatIf("rtx3090-pc-24gb-64gb", rtx3090, desktop4(64*gib)),
		whatIf("rtx3090-pc-24gb-128gb", rtx3090, desktop4(128*gib)),
		whatIf("rtx4090-pc-128gb", rtx4090, desktop5(128*gib)),
		whatIf("rtx4090-pc-128gb-2drives", rtx4090, desktop5(128*gib)).withTwoDrives(),
		whatIf("rtx4090-pc-192gb", rtx4090, desktop5(192*gib)),
		whatIf("rtx4090-pc-192gb-2drives", rtx4090, desktop5(192*gib)).withTwoDrives(),
		whatIf("rtx4090-pc-256gb", rtx4090, desktop5(256*gib)),
		whatIf("rtx4090-pc-256gb-2drives", rtx4090, desktop5(256*gib)).withTwoDrives(),
		whatIf("rtx5060ti-pc-16gb-64gb", rtx5060Ti, desktop5(64*gib)),
		whatIf("rtx5060ti-pc-16gb-128gb", rtx5060Ti, desktop5(128*gib)),
		whatIf("rtx5090-pc-128gb", rtx5090, desktop5(128*gib)),
		whatIf("rtx5090-pc-192gb", rtx5090, desktop5(192*gib)),
		whatIf("rtx5090-pc-192gb-2drives", rtx5090, desktop5(192*gib)).withTwoDrives(),
		whatIf("rtx5090-pc-256gb", rtx5090, desktop5(256*gib)),
		whatIf("rtxa6000-256gb", rtxA6000, hostSystem{256 * gib, 204.8, 24, false, consumer4, "RAM: 256 GB, eight channels of DDR4-3200 (Threadripper PRO 5000), 8 x 8 B x 3.2 GT/s = 204.8 GB/s"}),
		whatIf("rtx6000ada-256gb", rtx6000Ada, hostSystem{256 * gib, 332.8, 32, false, consumer4, "RAM: 256 GB, eight channels of DDR5-5200 (Threadripper PRO 7000), 8 x 8 B x 5.2 GT/s = 332.8 GB/s"}),
		whatIf("l40s-512gb", l40s, hostSystem{512 * gib, 307.2, 32, false, server4, "RAM: 512 GB, eight channels of DDR5-4800 (4th generation Xeon, one module each), 8 x 8 B x 4.8 GT/s = 307 GB/s"}),
		whatIf("a100-40gb-256gb", a100PCIe40, epyc4(256*gib)),
		whatIf("a100-80gb-512gb", a100SXM80, epyc4(512*gib)),
		whatIf("h100-pcie5", h100PCIe, hostSystem{512 * gib, 307.2, 32, false, server5, "RAM: 512 GB, eight channels of DDR5-4800 (4th generation Xeon, one module each), 8 x 8 B x 4.8 GT/s = 307 GB/s"}),
		whatIf("h100-sxm", h100SXM, hostSystem{512 * gib, 307.2, 14, false, server5, "RAM: 512 GB, eight channels of DDR5-4800 (4th generation Xeon, one module each), 8 x 8 B x 4.8 GT/s = 307 GB/s: one GPU's share of a server with two sockets, or less where eight GPUs share them; 14 cores are an eighth of those of two Xeon Platinum 8480C"}),
		whatIf("h200-1.5tb", h200, hostSystem{1536 * gib, 614.4, 112, false, server5, "RAM: 1.5 TB, two sockets of eight channels of DDR5-4800 (4th generation Xeon, one module each), 2 x 307 = 614 GB/s"}),
		whatIf("b200-2tb", b200, hostSystem{2048 * gib, 716.8, 112, false, server5, "RAM: 2 TB (NVIDIA DGX B200 data sheet), two sockets of eight channels of DDR5-5600 (5th generation Xeon, one module each), 2 x 8 x 8 B x 5.6 GT/s = 717 GB/s; one GPU of eight is used"}),
		whatIf("gb10-128gb", gb10, hostSystem{gb10HostBytes, 273, 20, true, consumer4, "RAM: NVIDIA DGX Spark data sheet: 128 GB of LPDDR5x that CPU and GPU share, 273 GB/s; the plan takes 33 GiB of it for the device and the rest for the host, and a copy between the two reads and writes the same memory, so that it runs at half of the rate; that the GPU's own work takes a part of the 273 GB/s from copies and updates is not counted"}),
		whatIf("gh200-480gb", gh200, hostSystem{480e9, 360, 72, false, server5, "RAM: NVIDIA Grace CPU benchmarking guide, STREAM, Grace Hopper with 480 GB: 288 to 342 GB/s, said to be 80 to 95% of the peak, so 360 GB/s; the data sheet's 512 GB/s are those of smaller memories; the GPU could read this memory in place, and the plan copies as over any link, at what the RAM gives"}),
		whatIf("rtx4090-x2-256gb", rtx4090, epyc9(256*gib, 1)).with(2),
		whatIf("rtx4090-x4-512gb", rtx4090, epyc9(512*gib, 1)).with(4),
		whatIf("rtx4090-x8-1.5tb", rtx4090, epyc9(1536*gib, 2)).with(8),
		whatIf("a100-x8-2tb", a100SXM80, hostSystem{2048 * gib, 409.6, 128, false, dgxArray,
			"RAM: 2 TB (NVIDIA DGX A100 640GB data sheet), two EPYC 7742 of eight channels of DDR4-3200, " +
				"2 x 8 x 8 B x 3.2 GT/s = 410 GB/s, for all GPUs together; each pair of GPUs shares a switch, and " +
				"its uplink is assumed not to limit"}).with(8),
		whatIf("h100-x4-1tb", h100SXM, hostSystem{1024 * gib, 614.4, 112, false, server5,
			"RAM: 1 TB, two sockets of eight channels of DDR5-4800 (4th generation Xeon, one module each), " +
				"2 x 8 x 8 B x 4.8 GT/s = 614 GB/s, for all GPUs together"}).with(4),
		whatIf("h100-x8-2tb", h100SXM, hostSystem{2048 * gib, 614.4, 112, false, dgxArray,
			"RAM: 2 TB (NVIDIA DGX H100 data sheet), two Xeon Platinum 8480C of eight channels of DDR5-4800, " +
				"2 x 8 x 8 B x 4.8 GT/s = 614 GB/s, for all GPUs together"}).with(8),
		whatIf("b200-x8-2tb", b200, hostSystem{2048 * gib, 716.8, 112, false, dgxArray,
			"RAM: 2 TB (NVIDIA DGX B200 data sheet), two Xeon Platinum 8570 of eight channels of DDR5-5600, " +
				"2 x 8 x 8 B x 5.6 GT/s = 717 GB/s, for all GPUs together"}).with(8),
		whatIf("dgx-2", v100, hostSystem{1536 * gib, 256, 48, false, dgx2Array, "RAM: 1.5 TB, two Xeon Platinum 8168 of six channels of DDR4-2666, 2 x 6 x 8 B x 2.67 GT/s = 256 GB/s"}),
	}
}

// whatIf scales what data sheets say by the shares of it that arrive.
func whatIf(name string, g gpu, h hostSystem) NamedMachine {
	const tera = 1e12
	dram := dramShare * h.dramGBPerSec * gigabyte
	bytesPerCopied := 1.0
	if h.isShared {
		bytesPerCopied = 2
	}
	link := min(linkShare*g.linkGBPerSec*gigabyte, dram/bytesPerCopied) // no link is faster than what feeds it
	sources := []string{g.source, g.shares.text(), h.source, h.drive.source,
		operationShares(),
		fmt.Sprintf("updates with moments in 8 bits: %.3g GB/s a core of %d, and no more than the RAM gives; an "+
			"H100's host of 16 processors, taken as 8 cores, had %.3g GB/s (benchmarks/gpu); the number of cores is assumed "+
			"where it is not named above", core8BytesPerSec/gigabyte, h.cores, 8*core8BytesPerSec/gigabyte),
		fmt.Sprintf("shares that are assumed for every machine: link %.2f, RAM %.2f, drive %.2f; copies and updates at once "+
			"are assumed to share the RAM by how much each asks for", linkShare, dramShare, diskShare)}
	if l, linked := nvlinks[g.name]; linked {
		sources = append(sources, l.source)
	}
	if g.lacks != "" {
		sources = slices.Insert(sources, 0, g.lacks)
	}
	named := NamedMachine{
		Name: name,
		Machine: Machine{
			Name:           name + " (data sheets, scaled; not measured)",
			F32FLOPsPerSec: g.shares.f32 * g.f32TFLOPS * tera, BF16FLOPsPerSec: g.shares.matMul * g.tensorTFLOPS * tera,
			AttentionFLOPsPerSec:    g.shares.attention * g.tensorTFLOPS * tera,
			F32AttentionFLOPsPerSec: g.shares.attention * g.f32TFLOPS * tera,
			DeviceOpsPerSec:         GPUOpsPerSec,
			DeviceBytesPerSec:       g.shares.memory * g.memoryGBPerSec * gigabyte,
			UploadBytesPerSec:       link, DownloadBytesPerSec: link,
			PeerCopyBytesPerSec: linkShare * nvlinks[g.name].gbPerSec * gigabyte,
			AdamWBytesPerSec:    dram, HostBytesPerSec: dram,
			AdamW8BytesPerSec:    min(dram, float64(h.cores)*core8BytesPerSec),
			DiskReadBytesPerSec:  diskShare * h.drive.readGBPerSec * gigabyte,
			DiskWriteBytesPerSec: diskShare * h.drive.writeGBPerSec * gigabyte,
		},
		Device:          device.GPU(),
		Devices:         1,
		RatedWriteBytes: h.drive.ratedWriteBytes,
		Sources:         sources,
	}
	named.Device.Name, named.Device.MemoryBytes = g.name, g.memory
	named.SetSizes(h.ram, h.drive.bytes)
	named.Machine.shareRAM(dram, bytesPerCopied)
	return named
}

// with is the machine with n of its devices, each with a link of its own.
func (m NamedMachine) with(n int) NamedMachine {
	m.Devices = n
	return m
}

// withTwoDrives is the machine with a second such drive, as memory.path lists them, whose rates are assumed to add up.
func (m NamedMachine) withTwoDrives() NamedMachine {
	one := DriveRates{ReadBytesPerSec: m.Machine.DiskReadBytesPerSec, WriteBytesPerSec: m.Machine.DiskWriteBytesPerSec}
	m.Machine.Drives = []DriveRates{one, one}
	m.Machine.DiskReadBytesPerSec, m.Machine.DiskWriteBytesPerSec = 2*one.ReadBytesPerSec, 2*one.WriteBytesPerSec
	m.DiskBytes *= 2
	for i, source := range m.Sources {
		if each, ok := strings.CutPrefix(source, "drive: "); ok {
			m.Sources[i] = "drives: two, as memory.path lists them, which assumes that each has four lanes of its own; each a " +
				each
		}
	}
	return m
}

// deviceReserveBytes stay free of a GPU's memory: for the driver's context, its libraries' workspaces, a screen.
const deviceReserveBytes = 1 << 30

// SetSizes sets the budgets from the device's memory, the RAM and the drive's capacity. A RAM or a capacity of 0 leaves
// its budget unchanged.
func (m *NamedMachine) SetSizes(hostMemory, diskSpace int64) {
	m.DeviceBytes = m.Device.MemoryBytes - deviceReserveBytes
	if hostMemory > 0 {
		m.HostBytes = int64(budgetShare * float64(hostMemory))
	}
	if diskSpace > 0 {
		m.DiskBytes = int64(budgetShare * float64(diskSpace))
	}
}

// HostMemory is the RAM, whose share is the host's budget.
func (m *NamedMachine) HostMemory() int64 {
	return int64(math.Round(float64(m.HostBytes) / budgetShare))
}

// DiskSpace is the drive's capacity, whose share is the disk's budget.
func (m *NamedMachine) DiskSpace() int64 {
	return int64(math.Round(float64(m.DiskBytes) / budgetShare))
}

// ShareRAM sets the rates of what runs at once, where none was measured: copies and updates share the RAM's bytes per
// second by how much each asks for alone.
func (m *Machine) ShareRAM(bytesPerSec float64) { m.shareRAM(bytesPerSec, 1) }

// shareRAM is ShareRAM for copies of which each byte takes bytesPerCopied of the RAM.
func (m *Machine) shareRAM(bytesPerSec, bytesPerCopied float64) {
	copies := bytesPerCopied * (m.UploadBytesPerSec + m.DownloadBytesPerSec)
	duplex, all := min(1, bytesPerSec/copies), min(1, bytesPerSec/(copies+m.AdamWBytesPerSec))
	m.DuplexUploadBytesPerSec, m.DuplexDownloadBytesPerSec = duplex*m.UploadBytesPerSec, duplex*m.DownloadBytesPerSec
	m.UploadUnderAdamWBytesPerSec, m.DownloadUnderAdamWBytesPerSec = all*m.UploadBytesPerSec, all*m.DownloadBytesPerSec
	m.AdamWUnderCopiesBytesPerSec = all * m.AdamWBytesPerSec
}

// Request asks for a plan with all of the machine as budgets, its disk included. Devices copy from each other where the
// machine has a rate for that, and state on disk is dealt to drives, of one capacity each, where it has several.
func (m *NamedMachine) Request(of *model.Model, n Numerics) Request {
	dev := m.Device
	dev.PeerCopies = m.Machine.PeerCopyBytesPerSec > 0
	r := Request{Model: of, Numerics: n, Device: dev, Devices: m.Devices, Machine: m.Machine,
		ProgramBytes: ProgramBytes(m.Device, m.Devices), DeviceBytes: m.DeviceBytes, HostBytes: m.HostBytes,
		DiskBytes: m.DiskBytes}
	if drives := len(m.Machine.Drives); drives > 1 {
		r.DealByRate(make([]string, drives), slices.Repeat([]int64{m.DiskBytes / int64(drives)}, drives))
	}
	return r
}

// FindMachine is the machine of that name, or an error that lists those there are.
func FindMachine(name string) (NamedMachine, error) {
	var names []string
	for _, m := range Machines() {
		if m.Name == name {
			return m, nil
		}
		names = append(names, m.Name)
	}
	return NamedMachine{}, unknownName("machine", name, names)
}

// unknownName is the error of a machine or a shape that is not in the tables.
func unknownName(what, name string, known []string) error {
	return fmt.Errorf("%s %q is unknown%s; known are %s", what, name, spelling.Question(name, known), strings.Join(known, ", "))
}
