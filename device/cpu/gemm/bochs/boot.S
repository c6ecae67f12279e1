# A boot sector that loads the file of TestWriteBochsFile, enters 64-bit mode, allows AMX in XCR0 and calls the machine code of
# tileAMX with each case's arguments. It writes a dot to port 0xE9 for a case whose memory is as expected to the bit, X for
# one whose is not, then S if all were right.
.set at, 0x10000
.code16
.globl _start
_start:
	cli
	xor %ax,%ax
	mov %ax,%ds
	mov %ax,%ss
	mov $0x7000,%sp
	mov $at/16,%ax         # sectors 1.. of the disk, one at a time
	mov %ax,%es
	mov $1,%si             # number of the next sector
next:	mov %si,%ax
	xor %dx,%dx
	mov $36,%cx            # 2 heads of 18 sectors
	div %cx
	mov %al,%ch            # cylinder
	mov %dl,%al
	mov $18,%cl
	xor %ah,%ah
	div %cl
	mov %al,%dh            # head
	mov %ah,%cl
	inc %cl                # sector, from 1
	xor %dl,%dl
	xor %bx,%bx
	mov $0x0201,%ax
	int $0x13
	jc fail16
	mov %es,%ax
	add $32,%ax
	mov %ax,%es
	inc %si
	cmp $sectors,%si
	jbe next
	xor %ax,%ax
	mov %ax,%es
	in $0x92,%al
	or $2,%al
	out %al,$0x92
	# identity map of the first 2 MiB by one large page
	mov $0x1000,%edi
	xor %eax,%eax
	mov $0xc00,%ecx
	cld
	addr32 rep stosl
	movl $0x2003,0x1000
	movl $0x3003,0x2000
	movl $0x83,0x3000
	mov $0x1000,%eax
	mov %eax,%cr3
	mov $0x406a0,%eax      # PAE, OSFXSR, OSXMMEXCPT, OSXSAVE, PGE
	mov %eax,%cr4
	mov $0xc0000080,%ecx
	rdmsr
	or $0x100,%eax
	wrmsr
	mov %cr0,%eax
	and $0xfffffff3,%eax   # no EM, no TS
	or $0x80000003,%eax
	mov %eax,%cr0
	lgdt gdtr
	ljmp $8,$long
fail16:	mov $'D',%al
	out %al,$0xe9
1:	hlt
	jmp 1b
.align 8
gdt:	.quad 0
	.quad 0x00209a0000000000
	.quad 0x0000920000000000
gdtr:	.word 23
	.long gdt
.code64
long:	mov $16,%ax
	mov %ax,%ds
	mov %ax,%es
	mov %ax,%ss
	mov $0x6fc0,%esp
	mov $7,%eax
	xor %ecx,%ecx
	cpuid
	mov %edx,%eax
	and $0x1400000,%eax    # AMX-TILE, AMX-BF16
	cmp $0x1400000,%eax
	mov $'N',%al
	jne say
	xor %ecx,%ecx
	xgetbv
	or $0x600e7,%eax
	xsetbv
	mov $at+16,%ebp        # the first case
	mov at,%r13            # how many
	mov $'S',%r15b
call:	mov $6,%ecx            # its arguments onto the stack, the first one lowest
1:	push -8(%rbp,%rcx,8)
	loop 1b
	call *at+8
	add $48,%rsp
	mov 24(%rbp),%rsi
	mov 48(%rbp),%rdi
	mov 56(%rbp),%rcx
	mov $'.',%al
	repe cmpsb
	je 2f
	mov $'X',%al
	mov %al,%r15b
2:	out %al,$0xe9
	add $64,%rbp
	dec %r13
	jnz call
	mov %r15b,%al
say:	out %al,$0xe9
	mov $10,%al
	out %al,$0xe9
	mov $0x8900,%edx       # Bochs: shutdown
	mov $stop,%esi
	mov $8,%ecx
	rep outsb
1:	hlt
	jmp 1b
stop:	.ascii "Shutdown"
.org 510
.word 0xaa55
.incbin "cases"
.balign 512
end:
.set sectors, (end-_start)/512-1
